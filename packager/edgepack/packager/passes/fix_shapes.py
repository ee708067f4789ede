"""Pass `fix_shapes`: check for open dimensions if the provider needs fixed sizes.

The sizes themselves come from the caller (`--shape`) and are already in the source model; the pass
drops shapes derived from the old sizes, so that shape inference starts afresh.

Pass `infer_shapes`: the element type and shape of every tensor, if inferable.
"""

import onnx
from onnx import shape_inference

from edgepack.errors import BuildError
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.profiles.pass_settings import FixShapes, InferShapes


def fix_shapes(model: onnx.ModelProto, settings: FixShapes, context: PassContext) -> PassResult:
    """Clear derived shapes, and reject open dimensions if the profile forbids them.

    Args:
        model: The model; changed in place.
        settings: The pass's settings (none).
        context: See `PassContext`.

    Returns:
        The model.

    Raises:
        BuildError: An input has an open dimension and the provider needs fixed shapes.
    """
    open_inputs = [value for value in model.graph.input if _open_dimensions(value)]
    if context.limits.static_shapes and open_inputs:
        words = "; ".join(
            f"{value.name}: {', '.join(_open_dimensions(value))}" for value in open_inputs
        )
        raise BuildError(
            f"profile '{context.profile_name}' needs fixed shapes, "
            f"and the model leaves open {words}",
            found_in="pass fix_shapes",
            remedy=" ".join(f"--shape {value.name}=…" for value in open_inputs),
        )
    fixed = not open_inputs
    del model.graph.value_info[:]
    for value in model.graph.output:
        if fixed and _open_dimensions(value):
            value.type.tensor_type.ClearField("shape")
    return PassResult(model=model)


def _open_dimensions(value: onnx.ValueInfoProto) -> list[str]:
    return [
        dim.dim_param or f"axis {axis}"
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if not (dim.HasField("dim_value") and dim.dim_value > 0)
    ]


def infer_shapes(model: onnx.ModelProto, settings: InferShapes, context: PassContext) -> PassResult:
    """Infer types and shapes and write both into the model.

    Args:
        model: The model; changed in place.
        settings: The pass's settings (none).
        context: See `PassContext`.

    Returns:
        The model with `value_info` for each tensor that inference reached.

    Raises:
        BuildError: The graph contradicts itself.
    """
    try:
        add_shapes(model)
    except shape_inference.InferenceError as error:
        raise BuildError(
            f"the shapes of the model contradict each other: {str(error).strip()}",
            found_in="pass infer_shapes",
            remedy="export the model again, or correct --shape",
        ) from error
    return PassResult(model=model)
