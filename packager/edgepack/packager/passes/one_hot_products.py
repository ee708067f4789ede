"""Replacement of products with a one-hot matrix by lookups of rows.

JAX and TensorFlow write the embedding of a token so: compare the token with 0…N-1, make floats of
that, multiply by N rows. A file-type model computed 2,048 x 257 floats and a tenth of its
multiply-accumulates for a result that reading 2,048 rows gives to the bit. A token beyond 0…N-1 has
no 1 in its row and gives zeros; so does the table, with a row of zeros at either end.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.queries import GraphIndex, attribute, index_graph, is_standard
from edgepack.tasks.arrays import Singles

_TOKENS: dict[int, type[np.signedinteger]] = {
    TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64,
}


class _OneHot(NamedTuple):
    """A tensor of zeros and, in each row, at most a single 1.

    Attributes:
        tokens: Which column holds the 1.
        width: Number of columns.
        has_column_axis: Whether `tokens` has a last axis of a single column.
        counts_from_end: Whether -1 means the last column.
    """

    tokens: str
    width: int
    has_column_axis: bool
    counts_from_end: bool


def look_up_one_hots(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Replace products with one-hot matrices by lookups.

    Args:
        graph: A graph with shapes, Gemm in its simple form; changed in place. Unread nodes stay.

    Returns:
        Names of the products.
    """
    index = index_graph(graph)
    done = []
    for node in list(graph.node):
        found = _find(index, node)
        table = _table(index, node) if found is not None else None
        if found is None or table is None or len(table) != found.width:
            continue
        position = next(number for number, other in enumerate(graph.node) if other is node)
        lookup = list(_lookup(graph, node, found, np.pad(table, ((1, 1), (0, 0))), index))
        del graph.node[position]
        for offset, new in enumerate(lookup):
            graph.node.insert(position + offset, new)
        done.append(node.name)
    return tuple(done)


def _find(index: GraphIndex, node: onnx.NodeProto) -> _OneHot | None:
    """Return the one-hot matrix that a node multiplies by rows."""
    is_plain = node.op_type == "MatMul" or (
        node.op_type == "Gemm" and not attribute(node, "transA") and not attribute(node, "transB")
    )
    if not is_plain or not is_standard(node):
        return None
    maker = index.maker(node.input[0])
    if maker is not None and maker.op_type == "Cast":
        maker = index.maker(maker.input[0])
    if maker is None or not index.is_float(node.input[0]):
        return None
    if maker.op_type == "Equal":
        return _of_comparison(index, maker)
    return _of_operator(index, maker) if maker.op_type == "OneHot" else None


def _of_comparison(index: GraphIndex, equal: onnx.NodeProto) -> _OneHot | None:
    for tokens, columns in (tuple(equal.input), tuple(reversed(equal.input))):
        values, shape = index.constant(columns), index.shapes.get(tokens)
        if values is None or shape is None or index.types.get(tokens) not in _TOKENS:
            continue
        is_row = values.ndim > 0 and values.size == values.shape[-1] and values.size > 1
        if not is_row or len(shape) < values.ndim or shape[-1:] != (1,):
            continue
        if np.array_equal(values.reshape(-1), np.arange(values.size)):
            return _OneHot(tokens, values.size, has_column_axis=True, counts_from_end=False)
    return None


def _of_operator(index: GraphIndex, node: onnx.NodeProto) -> _OneHot | None:
    tokens, depth, values = (node.input[0], *(index.constant(name) for name in node.input[1:]))
    shape = index.shapes.get(tokens)
    if depth is None or values is None or shape is None or index.types.get(tokens) not in _TOKENS:
        return None
    axis = attribute(node, "axis", -1)
    if axis not in (-1, len(shape)) or values.tolist() != [0, 1]:
        return None
    return _OneHot(tokens, int(depth.item()), has_column_axis=False, counts_from_end=True)


def _table(index: GraphIndex, node: onnx.NodeProto) -> Singles | None:
    rows = index.constant(node.input[1])
    if rows is None or rows.ndim != 2 or not index.is_float(node.input[1]):
        return None
    return rows.astype(np.float32)


def _lookup(
    graph: onnx.GraphProto, node: onnx.NodeProto, found: _OneHot, table: Singles, index: GraphIndex
) -> Iterator[onnx.NodeProto]:
    name, dtype = node.name, _TOKENS[index.types[found.tokens]]

    def constant(values: npt.ArrayLike, what: str, kind: npt.DTypeLike = dtype) -> str:
        tensor = numpy_helper.from_array(np.asarray(values, dtype=kind), f"{name}/{what}")
        graph.initializer.append(tensor)
        return tensor.name

    def make(kind: str, inputs: list[str], what: str) -> onnx.NodeProto:
        return helper.make_node(kind, inputs, [f"{name}/{what}"], f"{name}/{what}")

    tokens = found.tokens
    if found.has_column_axis:
        yield make("Squeeze", [tokens, constant([-1], "last", np.int64)], "tokens")
        tokens = f"{name}/tokens"
    if found.counts_from_end:
        yield make("Less", [tokens, constant(0, "zero")], "is_from_end")
        yield make("Add", [tokens, constant(found.width, "count")], "from_start")
        yield make("Where", [f"{name}/is_from_end", f"{name}/from_start", tokens], "column")
        tokens = f"{name}/column"
    yield make("Clip", [tokens, constant(-1, "before"), constant(found.width, "behind")], "clip")
    yield make("Add", [f"{name}/clip", constant(1, "one")], "row")
    inputs = [constant(table, "one_hot_rows", np.float32), f"{name}/row"]
    has_bias = node.op_type == "Gemm" and len(node.input) > 2 and node.input[2]
    output = f"{name}/rows" if has_bias else node.output[0]
    yield helper.make_node("Gather", inputs, [output], f"{name}/lookup", axis=0)
    if has_bias:
        yield helper.make_node("Add", [output, node.input[2]], [node.output[0]], f"{name}/bias")
