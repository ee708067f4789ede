"""Pass `clamp_mask`: "minus infinity" constants become numbers that quantization can live with.

Attention masks add -3.4e38 (or -1e9) to scores; quantized, that one constant takes the whole
range of the tensor and every real score becomes zero (minilm, all operators at 16 bits: .25
before, .62 after). A score of -64 is as dead after a softmax as one of -3.4e38, but which value
is enough depends on the model: so the smallest is taken with which the outputs do not change.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.graph import stored_tensors
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.profiles.pass_settings import ClampMask
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference

_TOLERANCE = 1e-3
"""Share of an output's root-mean-square by which it may change; float rounding moves 1e-6."""

_SAMPLES = 16


def clamp_mask(model: onnx.ModelProto, settings: ClampMask, context: PassContext) -> PassResult:
    """Replaces constants at or below the threshold, with the outputs measured.

    Args:
        model: The model; changed in place.
        settings: The threshold, and the values to try in order.
        context: Its samples are what the outputs are compared on.

    Returns:
        The model, with a note of what was replaced by what.

    Raises:
        BuildError: No value keeps the outputs.
    """
    found = _mask_constants(model.graph, settings.threshold)
    if not found:
        return PassResult(model=model)
    samples = context.samples.pick(range(min(_SAMPLES, context.samples.count)))
    folder = context.work_dir / "clamp_mask"
    folder.mkdir(parents=True, exist_ok=True)
    expected = ModelRunner(model, folder / "before.onnx").run_all(samples)
    originals: dict[str, npt.NDArray[Any]] = {
        tensor.name: stored_tensors.values(tensor) for tensor in found
    }
    for value in settings.values:
        for tensor in found:
            array = originals[tensor.name]
            clamped = np.where(array <= settings.threshold, np.float32(value), array)
            tensor.CopyFrom(numpy_helper.from_array(clamped.astype(array.dtype), tensor.name))
        got = ModelRunner(model, folder / "after.onnx").run_all(samples)
        if largest_difference(expected, got, samples.meanings) <= _TOLERANCE:
            names = ", ".join(sorted(originals))
            return PassResult(
                model=model,
                notes=(
                    f"Mask constants ({names}) became {value:g}, with which the float "
                    "outputs stay the same.",
                ),
            )
    for tensor in found:  # they mean something else than a mask: leave them as they were
        tensor.CopyFrom(numpy_helper.from_array(originals[tensor.name], tensor.name))
    if not np.isfinite([array.min() for array in originals.values()]).all():
        raise BuildError(
            "the model has infinite constants that no finite mask value can replace",
            found_in=f"pass clamp_mask, {', '.join(sorted(originals))}",
            remedy="export the model with a finite attention mask, e.g. -1e4",
        )
    return PassResult(
        model=model,
        notes=(
            f"Large negative constants ({', '.join(sorted(originals))}) stay: "
            "the outputs change without them.",
        ),
    )


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
