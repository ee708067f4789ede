"""Pass `clamp_mask`: "minus infinity" constants become numbers that quantization can live with.

Attention masks add -3.4e38 (or -1e9) to scores; quantized, that constant takes the whole range of
the tensor and every real score becomes zero (minilm, all operators at 16 bits: .25 before, .62
after). A score of -64 is as dead after a softmax as -3.4e38, but the sufficient value depends on
the model: the pass takes the smallest magnitude that leaves the outputs unchanged.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.profiles.pass_settings import ClampMask
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference

_TOLERANCE = 1e-3
"""Share of an output's root-mean-square by which it may change; float rounding moves 1e-6."""

_SAMPLES = 16


def clamp_mask(model: onnx.ModelProto, settings: ClampMask, context: PassContext) -> PassResult:
    """Replace constants at or below the threshold, with the outputs measured.

    All together first. If that changes the outputs, some constants are not masks: each is tried
    individually then, and those with an effect stay unchanged, including infinities (quantizers
    leave their readers float).

    Args:
        model: The model; changed in place.
        settings: The threshold, and the values to try in order.
        context: Its samples give the compared outputs.

    Returns:
        The model, with a note of the replaced values.
    """
    found = _mask_constants(model.graph, settings.threshold)
    if not found:
        return PassResult(model=model)
    samples = context.samples.first(_SAMPLES)
    folder = context.work_dir / "clamp_mask"
    folder.mkdir(parents=True, exist_ok=True)
    expected = ModelRunner(model, folder / "before.onnx").run_all(samples)

    def keeps_outputs() -> bool:
        got = ModelRunner(model, folder / "after.onnx").run_all(samples)
        return largest_difference(expected, got, samples.description) <= _TOLERANCE

    groups = [found]
    clamped = [_clamp(found, settings, keeps_outputs)]
    if clamped == [None] and len(found) > 1:
        groups = [[tensor] for tensor in found]
        clamped = [_clamp(group, settings, keeps_outputs) for group in groups]
    names: dict[float | None, list[str]] = {}
    for group, value in zip(groups, clamped, strict=True):
        names.setdefault(value, []).extend(tensor.name for tensor in group)
    return PassResult(model=model, notes=tuple(_describe(*entry) for entry in names.items()))


def _clamp(
    tensors: Sequence[onnx.TensorProto], settings: ClampMask, keeps_outputs: Callable[[], bool]
) -> float | None:
    """Clamp the values of some tensors; return the clamp value, or None if the tensors stay."""
    originals: list[npt.NDArray[Any]] = [stored_tensors.values(tensor) for tensor in tensors]
    for value in settings.values:
        for tensor, array in zip(tensors, originals, strict=True):
            clamped = np.where(array <= settings.threshold, np.float32(value), array)
            tensor.CopyFrom(numpy_helper.from_array(clamped.astype(array.dtype), tensor.name))
        if keeps_outputs():
            return value
    for tensor, array in zip(tensors, originals, strict=True):
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return None


def _describe(value: float | None, tensors: Sequence[str]) -> str:
    names = ", ".join(sorted(tensors))
    if value is None:
        return f"Large negative constants ({names}) stay: the outputs change without them."
    return f"Mask constants ({names}) became {value:g}, with which the float outputs stay the same."


def _mask_constants(graph: onnx.GraphProto, threshold: float) -> list[onnx.TensorProto]:
    found = [
        tensor
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and _has_mask(tensor, threshold)
    ]
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            found.extend(
                attribute.t
                for attribute in node.attribute
                if attribute.name == "value" and _has_mask(attribute.t, threshold)
            )
    return found


def _has_mask(tensor: onnx.TensorProto, threshold: float) -> bool:
    if tensor.data_type != onnx.TensorProto.FLOAT:
        return False
    values = stored_tensors.values(tensor)
    return values.size > 0 and bool(values.min() <= threshold)
