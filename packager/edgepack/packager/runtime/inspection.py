"""Looks inside a lowered model: the error of each tensor, and the range each scale covers.

Both models run a few samples in turn, and output a few thousand evenly spaced values of each common
tensor; so memory depends on the number of tensors alone, and the cost is a few inferences. The same
inputs give the same numbers: nothing is timed.

Error of each tensor of a lowered model against the float model's.

Range of each scale of a quantized model, and values outside the range.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import onnx
from msgspec.structs import asdict, replace

from edgepack.packager.graph.held_weights import hold_weights, save_for_session
from edgepack.packager.graph.model_files import load_model, open_on_cpu, weights_size_bytes
from edgepack.packager.graph.node_precision import node_label, node_precision
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import index_graph
from edgepack.packager.graph.source_quantization import PACKED_PRODUCT
from edgepack.packager.graph.subsampling import PHASE, add_subsamples
from edgepack.packager.runtime.model_run import run_of
from edgepack.packager.tensors.observations import Observation
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Floats

OUTLIER_FACTOR = 4.0
"""A range this many times as wide as 99.9 % of its values need spends two bits on the rest."""

_CENTRAL = (0.0005, 0.9995)


class ActivationScale(msgspec.Struct, frozen=True, kw_only=True):
    """Scale of an activation in the model's file.

    Attributes:
        tensor: The float model's name of the tensor.
        dtype: Integer type, numpy's name.
        scale, zero_point: real = (integer - zero_point) * scale.
    """

    tensor: str
    dtype: str
    scale: float
    zero_point: int

    @property
    def covered(self) -> tuple[float, float]:
        """Least and greatest real number that can be expressed."""
        limits = np.iinfo(self.dtype)
        return (
            (int(limits.min) - self.zero_point) * self.scale,
            (int(limits.max) - self.zero_point) * self.scale,
        )


class TensorRange(ActivationScale, frozen=True, kw_only=True):
    """Covered range of a scale and the tensor's values; reals with four digits.

    Attributes:
        covered_low, covered_high: Least and greatest real number that can be expressed.
        seen_low, seen_high: Least and greatest value that calibration saw, and of the held-out
            samples where nothing was calibrated here.
        central_low, central_high: Between these lie 99.9 % of the values on held-out samples.
        clipped_share: Share of the held-out samples' values that saturate, 0…1.
        outlier_factor: Ratio of the values' range to the range of 99.9 % of the values; 0 if the
            latter are all alike.
    """

    covered_low: float
    covered_high: float
    seen_low: float
    seen_high: float
    central_low: float
    central_high: float
    clipped_share: float
    outlier_factor: float

    @property
    def has_outliers(self) -> bool:
        """True if few values make the range much wider than all others need."""
        return self.outlier_factor >= OUTLIER_FACTOR


def find_scales(
    lowered: onnx.GraphProto, reference: onnx.GraphProto
) -> tuple[ActivationScale, ...]:
    """Find the activations with a single scale, in graph order, each once.

    Args:
        lowered: The quantized graph.
        reference: The float graph, with the names for people.
    """
    index = index_graph(lowered)
    known = {name for node in reference.node for name in node.output if name}
    known |= {value.name for value in reference.input}
    found: dict[str, ActivationScale] = {}
    for node in lowered.node:
        if node.op_type != "QuantizeLinear" or len(node.input) < 3:
            continue
        scale, zero_point = (index.constant(name) for name in node.input[1:3])
        if scale is None or zero_point is None or scale.size != 1:
            continue
        readers = (lowered.node[i] for i in index.consumers.get(node.output[0], ()))
        names = [node.input[0], *(name for reader in readers for name in reader.output)]
        tensor = next((name for name in names if name in known), None)
        if tensor is not None and zero_point.dtype.kind in "iu":
            found[tensor] = ActivationScale(
                tensor=tensor,
                dtype=zero_point.dtype.name,
                scale=float(scale.reshape(())),
                zero_point=int(zero_point.reshape(())),
            )
    return tuple(found.values())


def describe_range(
    scale: ActivationScale, calibrated: Observation | None, values: Sequence[Floats]
) -> TensorRange:
    """Compare a scale with the float model's values.

    Args:
        scale: The scale.
        calibrated: Observation of the tensor at calibration, or None.
        values: float64 (values,), an array per held-out sample; not empty.
    """
    flat = np.concatenate(values)
    flat = flat[np.isfinite(flat)]
    if not flat.size:
        flat = np.zeros(1)
    low, high = scale.covered
    slack = scale.scale / 2
    # `np.quantile`, without the masked arrays that it imports
    ranked, places = np.sort(flat), np.arange(flat.size)
    central = np.interp(np.multiply(_CENTRAL, flat.size - 1), places, ranked)
    seen = (float(flat.min()), float(flat.max()))
    if calibrated is not None:
        seen = (calibrated.low, calibrated.high)
    needed = float(central[1] - central[0])
    return TensorRange(
        **asdict(replace(scale, scale=_digits(scale.scale, 6))),
        covered_low=_digits(low),
        covered_high=_digits(high),
        seen_low=_digits(seen[0]),
        seen_high=_digits(seen[1]),
        central_low=_digits(float(central[0])),
        central_high=_digits(float(central[1])),
        clipped_share=_digits(float(np.mean((flat < low - slack) | (flat > high + slack))), 3),
        outlier_factor=_digits((seen[1] - seen[0]) / needed, 3) if needed > 0.0 else 0.0,
    )


def _digits(value: float, count: int = 4) -> float:
    """Round to `count` significant digits, without a minus before zero."""
    return float(f"{value:.{count}g}") + 0.0


_INSERTED = ("Cast", "Identity")
"""What lowering puts between nodes, beside pairs."""

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
_GREATEST_DB = 100.0
_LEAST_DB = -40.0


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of both models, and the lowered node that computes the tensor.

    Attributes:
        tensor: Its name.
        node, op: The node's name and operator.
        is_lowered: Whether that node computes in fewer bits.
    """

    tensor: str
    node: str
    op: str
    is_lowered: bool


class LayerError(Layer, frozen=True, kw_only=True):
    """The error that has built up until a tensor, on held-out samples.

    Attributes:
        nrmse: Root-mean-square error over the float tensor's root-mean-square, three digits.
        sqnr_db: The same as signal to quantization noise, decibels: -20 log10(nrmse).
    """

    nrmse: float
    sqnr_db: float


def shared_layers(reference: onnx.GraphProto, lowered: onnx.ModelProto) -> tuple[Layer, ...]:
    """Return the tensors to compare, in the float graph's order.

    Operators that only move values repeat the error of their input, and are left out, and so are
    sequences and optional values, which hold no numbers themselves.

    Args:
        reference: The float graph.
        lowered: The lowered model.
    """
    index = index_graph(lowered.graph)
    types = index_graph(reference).types
    no_tensors = {
        value.name for value in reference.value_info if not value.type.HasField("tensor_type")
    }
    precision = node_precision(lowered)
    quantized = precision.quantized if precision else frozenset()
    layers = []
    for node in reference.node:
        known = facts(node.op_type)
        if known.one_scale or not known.has_integer_form:
            continue
        if not node.output or node.output[0] not in index.producers:
            continue
        tensor = node.output[0]
        if tensor in no_tensors or types.get(tensor, onnx.TensorProto.FLOAT) not in _FLOATS:
            continue
        maker = lowered.graph.node[index.producers[tensor]]
        while _is_inserted(maker) and maker.input[0] in index.producers:
            maker = lowered.graph.node[index.producers[maker.input[0]]]
        layers.append(
            Layer(
                tensor=tensor,
                node=maker.name or tensor,
                op=maker.op_type,
                is_lowered=node_label(maker) in quantized,
            )
        )
    return tuple(layers)


def _is_inserted(node: onnx.NodeProto) -> bool:
    return facts(node.op_type).is_conversion == "pair" or node.op_type in _INSERTED


def measure_layer(
    layer: Layer, expected: Sequence[Floats], got: Sequence[Floats]
) -> LayerError | None:
    """Return the error of a tensor over all samples.

    Args:
        layer: The tensor.
        expected, got: float64 (values,), an array per sample: the float model's, the lowered
            model's.

    Returns:
        The error; None where the float model gives nothing but zeros or the shapes differ.
    """
    noise = signal = 0.0
    for before, after in zip(expected, got, strict=True):
        if before.shape != after.shape:
            return None
        finite = np.isfinite(before)
        noise += float(np.sum((after[finite] - before[finite]) ** 2))
        signal += float(np.sum(before[finite] ** 2))
    if signal == 0.0:
        return None
    ratio = math.sqrt(noise / signal) if math.isfinite(noise) else math.inf
    sqnr_db = -20.0 * math.log10(ratio) if 0.0 < ratio < math.inf else math.copysign(1e3, 1 - ratio)
    sqnr_db = min(max(sqnr_db, _LEAST_DB), _GREATEST_DB)
    return LayerError(
        **asdict(layer), nrmse=float(f"{10 ** (-sqnr_db / 20):.3g}"), sqnr_db=round(sqnr_db, 1)
    )


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
    are_packed = any(node.op_type in PACKED_PRODUCT for node in model.graph.node)
    run = run_of(open_on_cpu(path, optimize=are_packed), names)  # see `open_plain`
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
