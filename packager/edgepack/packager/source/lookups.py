"""Inputs that index rows of a table: tokens, positions, classes.

A token beyond the vocabulary ends an inference in words of the runtime that name a node. With the
graph's facts, such a token is found when the samples are read, and the file is named.
"""

from collections.abc import Collection, Mapping

import onnx

from edgepack.packager.tensors.spec import Lookup

KEEPS_EVERY_VALUE = frozenset(
    {
        *("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"),
        *("Expand", "Tile"),
    }
)
KEEPS_SOME_VALUES = KEEPS_EVERY_VALUE | {"Slice", "Gather", "Split"}
"""A decoder may look up the last of its tokens alone."""

_KEEPS_ROWS = frozenset({"Cast", "Identity", "DequantizeLinear"})


def find_lookups(
    graph: onnx.GraphProto, through: Collection[str] = KEEPS_EVERY_VALUE
) -> Mapping[str, Lookup]:
    """Return the smallest constant table that a Gather reads by each input.

    Args:
        graph: The main graph, its nodes in order; bodies of control flow may never run.
        through: Operators between the input and the Gather.
    """
    origin = {value.name: value.name for value in graph.input}
    tables = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    found: dict[str, Lookup] = {}
    for node in graph.node:
        first = node.input[0] if node.input else ""
        if node.op_type == "Constant":
            for attribute in node.attribute:
                tables[node.output[0]] = tuple(attribute.t.dims)
        if node.op_type in _KEEPS_ROWS and first in tables:
            tables[node.output[0]] = tables[first]
        if node.op_type in through and first in origin:
            origin[node.output[0]] = origin[first]
        if node.op_type == "Gather" and tables.get(first) and node.input[1] in origin:
            axis = next((entry.i for entry in node.attribute), 0)
            rows, name = tables[first][axis], origin[node.input[1]]
            if name not in found or rows < found[name].rows:
                node_words = f"Gather {node.name!r}" if node.name else "a Gather"
                found[name] = Lookup(rows=rows, node=node_words)
    return found
