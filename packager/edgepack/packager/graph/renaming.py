"""New names for tensors and nodes of a graph."""

from collections.abc import Mapping

import onnx

from edgepack.packager.graph.queries import own_names, subgraphs


def rename_reads(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """Changes what nodes read, those in bodies of control flow too.

    Args:
        graph: Changed.
        renamed: New names by the old ones; none of a graph input or output.
    """
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in renamed:
                node.input[i] = renamed[name]
        for body in subgraphs(node):
            own = own_names(body)
            outer = {name: new for name, new in renamed.items() if name not in own}
            rename_reads(body, outer)
            for value in body.output:  # a body may hand on what stands outside of it
                value.name = outer.get(value.name, value.name)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Gives every node a unique, non-empty name; names that are already so stay."""
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        name = node.name or f"{node.op_type}_{index}"
        while name in taken:
            name = f"{name}_{index}"
        taken.add(name)
        node.name = name
