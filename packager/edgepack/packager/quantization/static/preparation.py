"""Preparations of a float model for better quantization; each keeps the model's results."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import onnx

from edgepack.errors import BuildError
from edgepack.packager.graph.held_weights import hold_weights
from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.quantization.equalization.cross_layer import can_equalize, equalize
from edgepack.packager.quantization.equalization.smooth import can_smooth, smooth
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference
from edgepack.packager.tensors.sequence import Samples

_CHECK_SAMPLES = 4
_TOLERANCE = 1e-3
"""Share of an output's root-mean-square by which it may move (reordered sums)."""


class _Preparation(msgspec.Struct, frozen=True, kw_only=True):
    can: Callable[[GraphIndex], bool]
    do: Callable[[onnx.ModelProto, Quantize, Samples, Path], tuple[onnx.ModelProto, str]]


_PREPARATIONS: Mapping[str, _Preparation] = {
    "smooth": _Preparation(
        can=can_smooth,
        do=lambda model, settings, samples, folder: smooth(
            model, settings.smooth_alpha, samples, folder
        ),
    ),
    "cross-layer": _Preparation(
        can=can_equalize,
        do=lambda model, _settings, samples, folder: equalize(model, samples, folder),
    ),
}


def applicable(index: GraphIndex, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the preparations that a graph gives occasion for."""
    return tuple(name for name in wanted if _PREPARATIONS[name].can(index))


def prepare(
    name: str, model: onnx.ModelProto, settings: Quantize, samples: Samples, folder: Path
) -> tuple[onnx.ModelProto, str]:
    """Prepare a float model, and check that its outputs stay the same.

    Args:
        name: `smooth` or `cross-layer`.
        model: The float model with shapes; not changed.
        settings: The profile's quantize pass.
        samples: Calibration samples.
        folder: Folder for models on the way.

    Returns:
        The prepared model, with weights that may lie in `folder`, and a note with numbers.

    Raises:
        BuildError: The outputs changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prepared, note = _PREPARATIONS[name].do(model, settings, samples, folder)
    prepared = hold_weights(prepared, folder / "prepared.weights")
    few = samples.first(_CHECK_SAMPLES)
    difference = largest_difference(
        ModelRunner(model, folder / "before.onnx").run_all(few),
        ModelRunner(prepared, folder / "after.onnx").run_all(few),
        samples.description,
    )
    if difference > _TOLERANCE:
        raise BuildError(
            f"the preparation {name} changed the float outputs by {difference:.2%} of their size",
            found_in=f"pass quantize, prepare, {name}",
            remedy=f"a profile of your own without {name} in prepare",
        )
    return prepared, note
