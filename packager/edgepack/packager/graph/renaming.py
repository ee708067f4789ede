"""New names for tensors and nodes of a graph."""

from collections.abc import Mapping

import onnx

from edgepack.packager.graph.queries import own_names, subgraphs


def rename_tensors(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """Renames tensors where they are made, kept and read, in bodies of control flow too.

    Args:
        graph: Changed; a body's own tensors of the same name keep theirs.
        renamed: New names by the old ones; none of a graph input or output.
    """
    _rename_reads(graph, renamed)
    for node in graph.node:
        node.output[:] = [renamed.get(name, name) for name in node.output]
    kept = (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer))
    for value in (*kept, *graph.value_info):
        value.name = renamed.get(value.name, value.name)


def _rename_reads(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for body in subgraphs(node):
            own = own_names(body)
            outer = {name: new for name, new in renamed.items() if name not in own}
            _rename_reads(body, outer)
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
