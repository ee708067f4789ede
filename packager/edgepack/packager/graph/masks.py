"""Tensors that only mask the scores of a Softmax.

Minus infinity in such a tensor is not damage: the exponential is zero, and every output is finite.
"""

from collections.abc import Sequence

import onnx

from edgepack.packager.graph.operators import facts

_ENDS = frozenset({"Softmax", "Exp", "Attention", "MultiHeadAttention", "GroupQueryAttention"})
"""Whose exponential makes a zero of minus infinity."""

_LETS_THROUGH = frozenset({"Where", "Cast", "CastLike", "ScatterND", "Trilu"})
"""Beside what only moves values or computes each by itself."""


def find_masks(nodes: Sequence[onnx.NodeProto]) -> frozenset[str]:
    """Return the names of the tensors of which every reader leads to a Softmax, and adds or moves
    until then.

    Args:
        nodes: Nodes of a graph and of its bodies, each graph's in order.
    """
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    masks: set[str] = set()
    for name in reversed(readers):
        leads = [
            node.op_type in _ENDS or (_lets_through(node) and masks.issuperset(node.output))
            for node in readers[name]
        ]
        if all(leads):
            masks.add(name)
    return frozenset(masks)


def _lets_through(node: onnx.NodeProto) -> bool:
    known = facts(node.op_type)
    return (
        known.one_scale
        or known.by_value
        or bool(known.moves_integers)
        or node.op_type in _LETS_THROUGH
    )
