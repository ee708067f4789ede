"""Selection of further nodes that need high precision with the requested nodes.

A tensor has the type that its producer writes; a reader of the other type gets a conversion. So
nodes that only move values do so in the type of their input: a conversion in front would lose bits
on the way to a reader of high precision, or carry bits without information.
"""

from collections.abc import Collection

from edgepack.packager.graph.node_chains import only_reading
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import GraphIndex


def with_followers(
    index: GraphIndex, quantized: Collection[int], high_precision_nodes: Collection[str]
) -> frozenset[int]:
    """Return the nodes of high precision: the named nodes, and their followers.

    The Relu or Clip of a node follows the node. A node that only moves values follows its producer;
    if the producer is not quantized, the node follows a reader of high precision.

    Args:
        index: The float graph.
        quantized: Indices of the nodes that are quantized.
        high_precision_nodes: The names.

    Returns:
        Indices of nodes.
    """
    if not high_precision_nodes:
        return frozenset()
    movers = [p for p in sorted(quantized) if _moves(index, p)]
    named = {p for p in quantized if index.graph.node[p].name in high_precision_nodes}
    found = named - set(movers)
    rectifiers = {following_rectifier(index, position) for position in found}
    found |= {p for p in rectifiers if p is not None and p in quantized}
    computed = frozenset(found)
    for position in movers:
        source = index.graph.node[position].input[0]
        producer = index.producers.get(source)
        if producer is not None and producer in quantized:
            is_high = producer in found
        elif source in index.initializers:
            is_high = position in named  # a table takes twice the bytes
        else:
            is_high = position in named or _is_read_by(index, position, computed)
        if is_high:
            found.add(position)
    return frozenset(found)


def find_followers(index: GraphIndex, quantized: Collection[int]) -> frozenset[str]:
    """Return the names of nodes that always follow another: nodes that move the outputs of
    quantized nodes.
    """
    return frozenset(
        index.graph.node[position].name
        for position in quantized
        if _moves(index, position)
        and index.producers.get(index.graph.node[position].input[0]) in quantized
    )


def following_rectifier(index: GraphIndex, position: int) -> int | None:
    """Return the index of the Relu or Clip computed together with a node; None without any."""
    node = index.graph.node[position]
    if not facts(node.op_type).takes_rectifier or len(node.output) != 1:
        return None
    output = node.output[0]
    position_behind = only_reading(index, output)
    if position_behind is None:
        return None
    reader = index.graph.node[position_behind]
    if not facts(reader.op_type).rectifies or reader.input[0] != output:
        return None
    bounds_are_constant = all(not n or n in index.initializers for n in reader.input[1:])
    return position_behind if bounds_are_constant else None


def _moves(index: GraphIndex, position: int) -> bool:
    return facts(index.graph.node[position].op_type).one_scale


def _is_read_by(index: GraphIndex, position: int, wanted: Collection[int]) -> bool:
    """Return True if any wanted node reads a node's output, also through moving nodes."""
    for name in index.graph.node[position].output:
        for reader in index.consumers.get(name, []):
            if reader in wanted or (_moves(index, reader) and _is_read_by(index, reader, wanted)):
                return True
    return False
