"""Division of a model into consecutive pieces, so that some pieces can run without the rest."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
import onnx
from onnx import helper

from edgepack.packager.graph.edits import with_contents
from edgepack.packager.graph.queries import outer_reads, subgraphs


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Piece of a graph: some nodes as a separate model.

    Attributes:
        model: The nodes with their weights, and without model-wide data.
        inputs: The graph's own inputs of the piece, and outputs of earlier pieces.
        outputs: The graph's own outputs of the piece, and inputs of later pieces.
    """

    model: onnx.ModelProto
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def cut(
    model: onnx.ModelProto, starts: Sequence[int], types: Mapping[str, int]
) -> tuple[Piece, ...]:
    """Cut a model.

    Args:
        model: The model; not changed.
        starts: Index of the first node of each piece, ascending, 0 first.
        types: ONNX element type by tensor.

    Returns:
        A piece for each start; the whole model if a needed type is unknown, or if no node makes an
        output.
    """
    graph = model.graph
    bounds = [*starts, len(graph.node)]
    groups = [graph.node[start:end] for start, end in pairwise(bounds)]
    made = {
        name: number
        for number, nodes in enumerate(groups)
        for node in nodes
        for name in node.output
    }
    fed = {value.name: value for value in graph.input}
    ends = {value.name: value for value in graph.output}
    reads = [_reads(nodes) for nodes in groups]
    exchanged = {
        name
        for number, names in enumerate(reads)
        for name in names
        if made.get(name, number) != number
    }
    if not exchanged <= {*ends, *types} or not ends.keys() <= made.keys():
        return (Piece(model=model, inputs=tuple(fed), outputs=tuple(ends)),)

    def declare(name: str) -> onnx.ValueInfoProto:
        whole = fed.get(name) or ends.get(name)
        return whole or helper.make_tensor_value_info(name, types[name], None)

    pieces = []
    for number, nodes in enumerate(groups):
        inputs = [name for name in reads[number] if name in fed or made.get(name, number) != number]
        outputs = [
            name for node in nodes for name in node.output if name in ends or name in exchanged
        ]
        kept = (tensor for tensor in graph.initializer if tensor.name in reads[number])
        piece = with_contents(model, nodes, map(declare, inputs), map(declare, outputs), kept)
        piece.graph.name = f"{graph.name}/{number}"
        pieces.append(Piece(model=piece, inputs=tuple(inputs), outputs=tuple(outputs)))
    return tuple(pieces)


def _reads(nodes: Iterable[onnx.NodeProto]) -> dict[str, None]:
    """Return the inputs of nodes in order, including inner tensors and inputs of bodies."""
    names: dict[str, None] = {}
    for node in nodes:
        names |= dict.fromkeys(name for name in node.input if name)
        for body in subgraphs(node):
            names |= dict.fromkeys(sorted(outer_reads(body)))
    return names
