"""Operators that a version of the standard operator set has."""

import onnx
from onnx import defs

from edgepack.packager.graph.queries import all_nodes, is_standard


class UnchangeableError(Exception):
    """A node that has no equivalent in the other operator set; the message says which."""

    remedy: str | None = None
    """What to do, where another export would not help."""


class UnreadableTypeError(UnchangeableError):
    """Weights of a type that an operator of the other set does not read."""

    remedy = "give the float model that it was made from"


def exists(node: onnx.NodeProto, version: int) -> bool:
    """Return whether an operator set has the operator of a node of the standard domain."""
    try:
        return not defs.get_schema(node.op_type, version, "").deprecated
    except defs.SchemaError:
        return False


def check_types(model: onnx.ModelProto, target: int) -> None:
    """Reject weights of types that their readers do not accept in another opset.

    Raises:
        UnreadableTypeError: The node of the first such weight.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if not is_standard(node) or not exists(node, target):
            continue
        expected = defs.get_schema(node.op_type, target, "").inputs
        for name, formal in zip(node.input, expected, strict=False):
            if name not in tensors:
                continue
            kind = onnx.TensorProto.DataType.Name(tensors[name].data_type).lower()
            if f"tensor({kind})" not in formal.types:
                raise UnreadableTypeError(
                    f"{node.op_type} takes no {kind} in opset {target} ({label(node)})"
                )


def has_unknown_attributes(graph: onnx.GraphProto, version: int) -> bool:
    """Return True if a node, or a node in a body, has an attribute that its operator lacks in a
    version.
    """
    return any(
        attribute.name not in defs.get_schema(node.op_type, version, "").attributes
        for node in all_nodes(graph)
        if is_standard(node) and exists(node, version)
        for attribute in node.attribute
    )


def label(node: onnx.NodeProto) -> str:
    """Return a node in words, also without a name."""
    return f"node {node.name or node.output[0]!r}"
