"""Inputs of a graph whose values choose rows of a table, such as tokens of an embedding."""

import onnx

from edgepack.packager.graph.queries import attribute

_MOVES = ("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten")
"""Operators that pass whole numbers on."""


def find_token_counts(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the number of rows that each input chooses from, by input.

    Only tables that are weights count. Of several tables, the smallest counts.
    """
    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    origin = {one.name: one.name for one in graph.input if one.name not in sizes}
    counts: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in _MOVES and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        if node.op_type != "Gather" or node.domain:
            continue
        table, chosen = sizes.get(node.input[0]), origin.get(node.input[1])
        if table and chosen:
            rows = table[attribute(node, "axis", 0)]
            counts[chosen] = min(rows, counts.get(chosen, rows))
    return {name: rows for name, rows in counts.items() if rows > 0}
