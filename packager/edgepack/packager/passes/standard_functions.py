"""Expansion of a standard operator into its definition by other operators.

Newer operator sets have operators that are functions of older operators: Gelu, GroupNormalization,
Mish, Swish, RMSNormalization. Hardware for older sets computes these operators in expanded form.
"""

from collections.abc import Mapping
from copy import deepcopy

import onnx
from onnx import defs, helper, inliner

from edgepack.packager.graph.queries import subgraphs


def write_out(
    node: onnx.NodeProto, opset: int, types: Mapping[str, onnx.TypeProto]
) -> list[onnx.NodeProto] | None:
    """Return the nodes that compute a node's function.

    Args:
        node: A node of the standard domain.
        opset: Of its model.
        types: Types of tensors by name: an operator's definition may depend on types.

    Returns:
        Nodes of the same operator set, their inner tensors named after the node's first output;
        None if a type is missing, or the standard has no definition for these types, or a
        definition with control flow.
    """
    names = dict.fromkeys(name for name in node.input if name)
    if any(name not in types for name in names):
        return None
    whole = deepcopy(node)
    _give_defaults(whole, defs.get_schema(node.op_type, opset, ""))
    inputs = [helper.make_value_info(name, types[name]) for name in names]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([whole], "alone", inputs, outputs)
    alone = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        written = inliner.inline_selected_functions(
            alone, [("", node.op_type)], inline_schema_functions=True
        )
    except RuntimeError:
        return None
    nodes = list(written.graph.node)
    if any(entry.op_type == node.op_type or any(subgraphs(entry)) for entry in nodes):
        return None
    outside = {*names, *node.output, ""}
    for entry in nodes:
        for tensors in (entry.input, entry.output):
            tensors[:] = [
                name if name in outside else f"{node.output[0]}/{name}" for name in tensors
            ]
        entry.name = f"{node.name or node.output[0]}/{entry.output[0]}"
    return nodes


def _give_defaults(node: onnx.NodeProto, schema: defs.OpSchema) -> None:
    """Set defaults that the inliner leaves empty: a Constant for a missing attribute."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)
