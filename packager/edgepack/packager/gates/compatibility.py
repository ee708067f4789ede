"""The compatibility gate: a finished file must stay within its profile's `[limits]`.

The passes keep a model within the limits. A quantizer or a provider's compiler writes its own file
afterwards, with the newest IR version that the compiler's ONNX Runtime knows, so the file that
ships is checked once more.
"""

from collections.abc import Iterator

import onnx

from edgepack.packager.gates.checks import Refusal
from edgepack.packager.graph.explicit_attributes import find_implicit
from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.profiles.schema import Limits, Profile

_SHOWN = 3


def check_compatibility(profile: Profile, model: onnx.ModelProto) -> Refusal | None:
    """Check a finished model against the limits of its profile.

    Args:
        profile: The profile.
        model: The shipped model, quantized or compiled.

    Returns:
        A refusal that names every exceeded limit; None if the file keeps all limits.
    """
    found = tuple(_find_violations(profile.limits, model))
    if not found:
        return None
    return Refusal(
        problem=f"the file of profile '{profile.name}' exceeds its limits: {'; '.join(found)}",
        found_in="the finished model, [limits]",
        remedy="build with the onnxruntime that edgepack was tested with, or widen [limits] in a "
        "profile of your own if every device reads such a file",
    )


def _find_violations(limits: Limits, model: onnx.ModelProto) -> Iterator[str]:
    if model.ir_version > limits.ir_version_max:
        yield f"IR version {model.ir_version}, at most {limits.ir_version_max}"
    opset = opset_of(model)
    if not limits.opset_min <= opset <= limits.opset_max:
        yield f"opset {opset}, allowed are {limits.opset_min}…{limits.opset_max}"
    forbidden = {node.op_type for node in model.graph.node} & set(limits.forbidden_ops)
    if forbidden:
        yield f"forbidden operators {', '.join(sorted(forbidden))}"
    implicit = find_implicit(model, limits.explicit_attributes)
    for name, missing in list(implicit.items())[:_SHOWN]:
        yield f"node {name!r} leaves {', '.join(missing)} to their defaults"
    if limits.static_shapes:
        weights = {tensor.name for tensor in model.graph.initializer}
        for value in model.graph.input:
            if value.name not in weights and not _is_static(value):
                yield f"input {value.name!r} without fixed dimensions"


def _is_static(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
