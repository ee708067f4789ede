"""Conversion of a model with quantized weights to its equivalent float model.

1. A DequantizeLinear behind nodes that only move integers goes before the nodes: the whole table
   becomes floats instead of its rows.
2. Each DequantizeLinear of a known tensor becomes its values.
3. A product with packed weights (MatMulNBits) becomes a MatMul of the real values.
"""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import drop_unread, drop_unused_nodes, refill, sort_nodes
from edgepack.packager.graph.held_weights import load_held
from edgepack.packager.graph.model_files import drop_unused_opsets, is_large
from edgepack.packager.graph.operators import facts, tells_places
from edgepack.packager.graph.queries import GraphIndex, attributes, index_graph
from edgepack.packager.graph.source_quantization import (
    PACKED_PRODUCT,
    read_source_quantization,
)
from edgepack.packager.quantization.weight_only.blocks import read_packed
from edgepack.packager.source.known_branches import KnownValues
from edgepack.tasks.arrays import Tensor

_INPUTS = 6
"""Of a MatMulNBits: data, codes, scales, zero points, an order of columns, a bias."""


def unfold_weights(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return the float model.

    Args:
        model: The model; not changed.

    Returns:
        A copy without integers in computations; None if some stay, for example at a quantized
        input, or if the floats are too large for a single file.
    """
    floats = onnx.ModelProto()
    floats.CopyFrom(model)
    load_held(floats)
    graph = floats.graph
    while _dequantize_before_moving(graph):
        pass
    values = KnownValues(floats)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        made: Tensor | None = None
        if node.op_type == "DequantizeLinear":
            made = values.value_of(node.output[0])
        if made is not None:
            graph.initializer.append(numpy_helper.from_array(made, node.output[0]))
        elif node.op_type in PACKED_PRODUCT:
            nodes += _as_product(node, floats, values)
        else:
            nodes.append(node)
            continue
        if is_large(floats):
            return None
    refill(graph.node, nodes)
    drop_unused_nodes(graph)
    drop_unread(graph)
    drop_unused_opsets(floats)
    return floats if read_source_quantization(graph) is None else None


def _dequantize_before_moving(graph: onnx.GraphProto) -> bool:
    """Swap a single DequantizeLinear with the preceding node that moves integers; return True if
    swapped.
    """
    index = index_graph(graph)
    for node in graph.node:
        before = _moves_for(node, index) if node.op_type == "DequantizeLinear" else None
        if before is None:
            continue
        moved, given = before.output[0], node.output[0]
        node.input[0], before.input[0] = before.input[0], moved
        node.output[0], before.output[0] = moved, given
        sort_nodes(graph)
        return True
    return False


def _moves_for(node: onnx.NodeProto, index: GraphIndex) -> onnx.NodeProto | None:
    """Return the node that moves values for a single node with a single scale; else None."""
    before, scale = index.maker(node.input[0]), index.constant(node.input[1])
    if before is None or scale is None or scale.size != 1:
        return None
    is_move = facts(before.op_type).moves_integers == "first" and not tells_places(before)
    is_alone = len(before.output) == 1 and len(index.consumers[node.input[0]]) == 1
    return before if is_move and is_alone and not before.domain else None


def _as_product(
    node: onnx.NodeProto, model: onnx.ModelProto, known: KnownValues
) -> Iterator[onnx.NodeProto]:
    """Yield a MatMulNBits as a MatMul, and an Add for its bias; its weights join the model.

    Scales may be stored in 16 bits, with a Cast.
    """
    data, codes, scales, zero_points, order, bias = (*node.input, *[""] * _INPUTS)[:_INPUTS]
    stored = [name for name in (codes, scales, zero_points) if name]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    found = (
        stored_tensors.values(constants[name]) if name in constants else known.value_of(name)
        for name in stored
    )
    of = {name: value for name, value in zip(stored, found, strict=True) if value is not None}
    if order or len(of) < len(stored):
        yield node
        return
    weight = read_packed(attributes(node), of[codes], of[scales], of.get(zero_points))
    product, name = f"{node.output[0]}/product", f"{node.output[0]}/weights"
    values = np.ascontiguousarray(weight.restore().T, of[scales].dtype)
    model.graph.initializer.append(numpy_helper.from_array(values, name))
    output = product if bias else node.output[0]
    yield helper.make_node("MatMul", [data, name], [output], name=node.name)
    if bias:
        yield helper.make_node("Add", [product, bias], [node.output[0]], name=f"{node.name}/bias")
