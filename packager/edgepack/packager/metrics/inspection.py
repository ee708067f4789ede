"""Looks inside a lowered model: the error of each tensor, and the range each scale covers.

Both models run a few samples in turn, and output a few thousand evenly spaced values of each common
tensor; so memory depends on the number of tensors alone, and the cost is a few inferences. The same
inputs give the same numbers: nothing is timed.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import onnx

from edgepack.packager.graph.held_weights import hold_weights, save_for_session
from edgepack.packager.graph.model_files import load_model, open_on_cpu, weights_size_bytes
from edgepack.packager.graph.subsampling import PHASE, add_subsamples
from edgepack.packager.metrics.layer_errors import LayerError, measure_layer, shared_layers
from edgepack.packager.metrics.tensor_ranges import TensorRange, describe_range, find_scales
from edgepack.packager.runtime.model_run import run_of
from edgepack.packager.tensors.observations import Observation
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Floats

MOST_SAMPLES = 4
"""Four samples of 4096 values tell a tensor's error to a fraction of a decibel."""

MOST_TENSORS = 400
"""Of a deeper model, every second, third … tensor is looked at."""

MOST_WEIGHT_BYTES = 600_000_000
"""Beyond this, loading both models once more would cost more than the look is worth."""

_VALUES_A_SAMPLE = 2048

_T = TypeVar("_T")

Values = dict[str, list[Floats]]
"""Some values of each tensor, one array a sample."""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an inspection.

    Attributes:
        sample_count: How many held-out samples both models ran; 0 without a run.
        layers: Errors of the tensors that both models have, in graph order.
        ranges: The quantized activations with a single scale, in graph order.
        note: Omissions with the reason; "" without omissions.
    """

    sample_count: int
    layers: tuple[LayerError, ...] = ()
    ranges: tuple[TensorRange, ...] = ()
    note: str = ""


def inspect(
    float_model: onnx.ModelProto,
    lowered_path: Path,
    samples: Samples,
    *,
    calibrated: Mapping[str, Observation],
    work_dir: Path,
) -> Inspection:
    """Run both models on a few samples and compare their common tensors.

    Args:
        float_model: The float model that was lowered; not changed.
        lowered_path: The lowered model.
        samples: Held-out samples; the first `MOST_SAMPLES` are run.
        calibrated: Observations of each tensor at calibration; empty without calibration.
        work_dir: Existing folder for the instrumented models.

    Returns:
        Errors and ranges, or a note why there are none.
    """
    weight_bytes = weights_size_bytes(float_model)
    if weight_bytes > MOST_WEIGHT_BYTES:
        return Inspection(
            sample_count=0,
            note=f"Layers were not looked at: the weights take {weight_bytes / 1e6:,.0f} MB, and "
            f"beyond {MOST_WEIGHT_BYTES / 1e6:,.0f} MB a second run of both models costs too much.",
        )
    lowered = hold_weights(load_model(lowered_path), work_dir / "lowered.weights")
    reference = deepcopy(float_model)
    layers = shared_layers(reference.graph, lowered)
    scales = find_scales(lowered.graph, reference.graph)
    kept_layers, kept_scales = _thin(layers), _thin(scales)
    few = samples.pick(range(min(samples.count, MOST_SAMPLES)))
    names = dict.fromkeys(
        (*(layer.tensor for layer in kept_layers), *(scale.tensor for scale in kept_scales))
    )
    expected = _observe(reference, tuple(names), few, work_dir / "reference-values.onnx")
    tensors = tuple(layer.tensor for layer in kept_layers)
    got = _observe(lowered, tensors, few, work_dir / "lowered-values.onnx")
    errors = (
        measure_layer(layer, expected[layer.tensor], got[layer.tensor])
        for layer in kept_layers
        if layer.tensor in expected and layer.tensor in got
    )
    return Inspection(
        sample_count=few.count,
        layers=tuple(error for error in errors if error is not None),
        ranges=tuple(
            describe_range(scale, calibrated.get(scale.tensor), expected[scale.tensor])
            for scale in kept_scales
            if scale.tensor in expected
        ),
        note=_describe_thinning(kept_layers, layers, "tensors")
        or _describe_thinning(kept_scales, scales, "scales"),
    )


def _observe(
    model: onnx.ModelProto, tensors: tuple[str, ...], samples: Samples, path: Path
) -> Values:
    """Return values of tensors on each sample, without tensors of other types than float."""
    if not tensors:
        return {}
    names = add_subsamples(model.graph, tensors, _VALUES_A_SAMPLE)
    save_for_session(model, path)
    run = run_of(open_on_cpu(path, optimize=False), names)
    phase = np.zeros(1, dtype=np.int64)
    seen: Values = {}
    for feeds in samples:
        for tensor, values in zip(tensors, run({**feeds, PHASE: phase}).values(), strict=True):
            if values.dtype.kind == "f":
                seen.setdefault(tensor, []).append(values.astype(np.float64))
    return seen


def _thin(entries: Sequence[_T]) -> tuple[_T, ...]:
    """Return at most `MOST_TENSORS`, evenly spread."""
    step = -(-len(entries) // MOST_TENSORS) if entries else 1
    return tuple(entries[::step])


def _describe_thinning(kept: Sequence[object], every: Sequence[object], what: str) -> str:
    if len(kept) == len(every):
        return ""
    return f"{len(kept)} of {len(every)} {what} were looked at, evenly spread."
