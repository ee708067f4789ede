"""Selection of further nodes that need high precision with the requested nodes.

A tensor has the type that its producer writes; a reader of the other type gets a conversion. So
what only moves values does that in the type in which it gets them: a conversion in front would
lose bits on the way to a reader of high precision, or carry bits that nothing has filled.
"""

from collections.abc import Collection

from edgepack.packager.graph.node_chains import only_reading
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import GraphIndex


def with_followers(
    index: GraphIndex, quantized: Collection[int], high_precision_nodes: Collection[str]
) -> frozenset[int]:
    """Return the nodes of high precision: those named, and those that follow them.

    The Relu or Clip of a node follows it. What only moves values follows the node that makes them;
    where that is not quantized, a reader of high precision.

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
    """Return the names of nodes that always follow another one: they move what quantized nodes
    make.
    """
    return frozenset(
        index.graph.node[position].name
        for position in quantized
        if _moves(index, position)
        and index.producers.get(index.graph.node[position].input[0]) in quantized
    )


def following_rectifier(index: GraphIndex, position: int) -> int | None:
    """Return the Relu or Clip that is computed together with a node, as an index; None without
    one.
    """
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
    """Return True if one of some nodes reads what a node makes, be it moved on the way."""
    for name in index.graph.node[position].output:
        for reader in index.consumers.get(name, []):
            if reader in wanted or (_moves(index, reader) and _is_read_by(index, reader, wanted)):
                return True
    return False
