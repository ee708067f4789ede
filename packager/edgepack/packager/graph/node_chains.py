"""Search and replacement of chains of nodes with a common function."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from edgepack.packager.graph.edits import drop_unread, refill
from edgepack.packager.graph.queries import GraphIndex, attribute, index_graph, is_standard


def producer(index: GraphIndex, name: str, *op_types: str) -> onnx.NodeProto | None:
    """Return the node that makes a tensor, if the node's type matches."""
    node = index.maker(name)
    return node if node and node.op_type in op_types and is_standard(node) else None


def only_reader(index: GraphIndex, name: str, *op_types: str) -> onnx.NodeProto | None:
    """Return the only node that reads a tensor inside the graph, if the node's type matches."""
    reader = only_reading(index, name)
    node = None if reader is None else index.graph.node[reader]
    return node if node and node.op_type in op_types and is_standard(node) else None


def only_reading(index: GraphIndex, name: str) -> int | None:
    """Return the position of the only node that reads an inner tensor."""
    readers = index.consumers.get(name, [])
    is_inner = name not in index.outputs and name not in index.body_reads
    return readers[0] if len(readers) == 1 and is_inner else None


def reduced_axes(index: GraphIndex, node: onnx.NodeProto) -> list[int]:
    """Return the axes of a reduction, from attribute or constant input; none without axes.

    Empty too where axes are computed.
    """
    if len(node.input) > 1:
        constant = index.constant(node.input[1])
        return [] if constant is None else [int(axis) for axis in constant.reshape(-1)]
    return list(attribute(node, "axes", ()))


def scalar(index: GraphIndex, name: str) -> float | None:
    """Return the value of a constant with a single number."""
    values = index.constant(name)
    return float(values.reshape(())) if values is not None and values.size == 1 else None


def other_input(node: onnx.NodeProto, name: str) -> str:
    """Return the other input of a node with two."""
    return str(node.input[1] if node.input[0] == name else node.input[0])


def is_near(value: float | None, wanted: float) -> bool:
    """Return True if a constant matches a formula's number, with an exporter's rounding."""
    return value is not None and bool(np.isclose(value, wanted, rtol=1e-3, atol=0.0))


class Chain(NamedTuple):
    """Nodes that write an operator out, the last of which makes its output, and the operator."""

    nodes: tuple[onnx.NodeProto, ...]
    by: onnx.NodeProto


def as_one(
    op_type: str, inputs: Sequence[str], nodes: Iterable[onnx.NodeProto], **attributes: Any
) -> Chain:
    """Return the chain of nodes with their common operator, named after the last node."""
    *others, last = nodes
    name = f"{last.name}/{op_type}"
    by = helper.make_node(op_type, inputs, [last.output[0]], name=name, **attributes)
    return Chain((*others, last), by)


def find_chains(
    graph: onnx.GraphProto, match: Callable[[GraphIndex, onnx.NodeProto], Chain | None]
) -> list[Chain]:
    """Return the matches of a pattern at the graph's nodes, in order."""
    index = index_graph(graph)
    return [chain for node in graph.node if (chain := match(index, node)) is not None]


def shorten(graph: onnx.GraphProto, chains: Sequence[Chain]) -> None:
    """Put each chain's operator in its place."""
    gone = {node.name for chain in chains for node in chain.nodes}
    replace(graph, gone, [(chain.nodes[-1].name, chain.by) for chain in chains])


def replace(
    graph: onnx.GraphProto, replaced: Collection[str], by: Iterable[tuple[str, onnx.NodeProto]]
) -> None:
    """Replace nodes by others; remove constants that nothing reads any longer.

    Args:
        graph: The graph; changed.
        replaced: Names of the nodes that go.
        by: For each new node the name of the replaced node.
    """
    new: dict[str, list[onnx.NodeProto]] = {}
    for place, node in by:
        new.setdefault(place, []).append(node)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.extend(new.get(node.name, ()))
        if node.name not in replaced:
            nodes.append(node)
    refill(graph.node, nodes)
    drop_unread(graph)
