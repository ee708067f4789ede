"""Precomputation of nodes that depend only on a table's rows, stored in the table.

Behind an embedding stand operators that treat every row by itself: a bias, an activation, a
normalization, a product. Over a constant table these operators are constants: the table's rows go
through the operators at build time, and the lookup reads the results (a file-type model: ten
operators on 131,072 values at every inference became none, on 16,576 values once). Constant folding
stops at the lookup.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import GraphIndex, attribute, index_graph, is_standard, reached
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.tasks.arrays import Singles

_MOST_NODES = 200
_ANY_TABLE_BYTES = 256 * 1024
"""A table up to this size may grow or be one more; a larger one must do neither."""


class _Region(NamedTuple):
    """Nodes behind a lookup that treat every row by itself.

    Attributes:
        lookup: The Gather.
        nodes: In graph order.
        last: The only tensor of the nodes that others read.
        width: Values per row of that tensor.
    """

    lookup: onnx.NodeProto
    nodes: tuple[onnx.NodeProto, ...]
    last: str
    width: int


def fold_into_tables(model: onnx.ModelProto, folder: Path) -> int:
    """Fold row-wise operators behind lookups into the tables.

    Args:
        model: A model with shapes; changed in place. Unread nodes stay.
        folder: Existing folder for intermediate models.

    Returns:
        How many nodes are gone.
    """
    graph, count = model.graph, 0
    for lookup in [node for node in graph.node if node.op_type == "Gather"]:
        index = index_graph(graph)
        for region in _regions(index, lookup):
            if not _has_room(index, region):
                continue
            table = _compute(model, index, region, folder / "table.onnx")
            name = f"{region.last}/table"
            graph.initializer.append(numpy_helper.from_array(table, name))
            lookup.input[0] = name
            lookup.output[0] = region.last
            for node in region.nodes:
                graph.node.remove(node)
            count += len(region.nodes)
            break
    return count


def _has_room(index: GraphIndex, region: _Region) -> bool:
    """Return True if the new table is small, or smaller than the replaced table."""
    name = region.lookup.input[0]
    rows, width = index.shapes[name]
    bytes_after = 4 * (rows or 0) * region.width
    if bytes_after <= _ANY_TABLE_BYTES:
        return True
    return len(index.consumers[name]) == 1 and region.width <= (width or 0)


def _regions(index: GraphIndex, lookup: onnx.NodeProto) -> Iterator[_Region]:
    """Yield regions behind a lookup, the largest first."""
    first = lookup.output[0]
    table, shape = index.constant(lookup.input[0]), index.shapes.get(first)
    axis = attribute(lookup, "axis", 0)
    if table is None or table.ndim != 2 or table.dtype != np.float32 or axis or not shape:
        return
    if len(shape) < 2:
        return
    widths = {first: table.shape[1]}
    makers: dict[str, onnx.NodeProto] = {}
    for node in index.graph.node:
        width = _width(index, node, widths, len(shape))
        if width and len(makers) < _MOST_NODES:
            widths[node.output[0]] = width
            makers[node.output[0]] = node
    for last in reversed(makers):
        nodes = _behind(last, makers)
        inner = {first, *(node.output[0] for node in nodes)} - {last}
        if not any(_is_read_elsewhere(index, name, nodes) for name in inner):
            yield _Region(lookup, nodes, last, widths[last])


def _width(
    index: GraphIndex, node: onnx.NodeProto, widths: dict[str, int], rank: int
) -> int | None:
    """Return values per row of a node's output, if the node treats every row independently."""
    rows = [name for name in node.input if name in widths]
    others = [name for name in node.input if name and name not in widths]
    if not rows or not is_standard(node) or len(node.output) != 1:
        return None
    constants = [index.initializers.get(name) for name in others]
    if any(tensor is None for tensor in constants):
        return None
    shapes = [index.shapes[name] for name in others]
    if node.op_type == "MatMul":
        is_product = len(rows) == 1 and node.input[0] in widths and len(shapes[0]) == 2
        return shapes[0][1] if is_product else None
    if node.op_type == "LayerNormalization":
        axis = attribute(node, "axis", -1)
        return widths[rows[0]] if axis in (-1, rank - 1) and len(rows) == 1 else None
    is_alike = all(len(shape) <= rank and set(shape[:-1]) <= {1} for shape in shapes)
    if not facts(node.op_type).by_value or not is_alike:
        return None
    return max(*(widths[name] for name in rows), *(shape[-1] or 1 for shape in shapes if shape), 1)


def _behind(last: str, makers: dict[str, onnx.NodeProto]) -> tuple[onnx.NodeProto, ...]:
    """Return the nodes that a tensor is made by, in graph order."""
    needed = reached([last], lambda name: makers[name].input if name in makers else ())
    return tuple(node for name, node in makers.items() if name in needed)


def _is_read_elsewhere(index: GraphIndex, name: str, nodes: Sequence[onnx.NodeProto]) -> bool:
    readers = [index.graph.node[position] for position in index.consumers.get(name, [])]
    is_open = name in index.outputs or name in index.body_reads
    return is_open or any(all(reader is not node for node in nodes) for reader in readers)


def _compute(model: onnx.ModelProto, index: GraphIndex, region: _Region, path: Path) -> Singles:
    """Return the new rows of the table."""
    first = region.lookup.output[0]
    rows = index.initializers[region.lookup.input[0]]
    rank = len(index.shapes[first])
    reads = {name for node in region.nodes for name in node.input}
    sizes = [1] * (rank - 2) + list(rows.dims)
    graph = helper.make_graph(
        region.nodes,
        "rows",
        [helper.make_tensor_value_info(first, TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info(region.last, TensorProto.FLOAT, None)],
        [tensor for tensor in index.graph.initializer if tensor.name in reads],
    )
    small = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    values = index.constant(region.lookup.input[0])
    given = np.asarray(values, dtype=np.float32).reshape(sizes)
    result = np.asarray(ModelRunner(small, path, threads=1).run({first: given})[region.last])
    return np.ascontiguousarray(result.reshape(rows.dims[0], -1), dtype=np.float32)
