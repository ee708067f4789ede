"""Pass `infer_shapes`: the element type and shape of every tensor, if inferable."""

import onnx
from onnx import shape_inference

from edgepack.errors import BuildError
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.profiles.pass_settings import InferShapes


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
