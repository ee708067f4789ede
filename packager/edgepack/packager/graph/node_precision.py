"""Precision of the nodes of a prepared model, integer or float, read from the graph."""

import msgspec
import onnx

from edgepack.packager.graph.operators import facts, is_integer_operator

_COMPILED = "EPContext"


class NodePrecision(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a model's main graph, conversions aside, as `name (operator)`."""

    quantized: frozenset[str]
    float_: frozenset[str]


def node_precision(model: onnx.ModelProto) -> NodePrecision | None:
    """Divide nodes into quantized and float nodes.

    A node is quantized in any of these cases: the node is an integer operator; a Conv, Gemm or
    MatMul that reads dequantized values; or any other operator between a DequantizeLinear and a
    QuantizeLinear.

    Args:
        model: The model; its weights need not be loaded.

    Returns:
        The nodes, or None for a model that was compiled ahead of time: its nodes are inside.
    """
    graph = model.graph
    if any(node.op_type == _COMPILED for node in graph.node):
        return None
    dequantized = {
        name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output
    }
    requantized = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    quantized: set[str] = set()
    float_: set[str] = set()
    for node in graph.node:
        if facts(node.op_type).is_conversion:
            continue
        label = node_label(node)
        is_product = facts(node.op_type).weights == "product"
        is_quantized = is_integer_operator(node.op_type) or (
            any(name in dequantized for name in node.input[: 2 if is_product else 1])
            and (is_product or any(name in requantized for name in node.output))
        )
        (quantized if is_quantized else float_).add(label)
    return NodePrecision(quantized=frozenset(quantized), float_=frozenset(float_))


def node_label(node: onnx.NodeProto) -> str:
    """Return a node's name for people: `name (operator)`."""
    return f"{node.name or node.output[0]} ({node.op_type})"
