"""Joins of very different values at the end of a model, which a single scale cannot hold.

A detector ends in a Concat of boxes (0…640) and scores (0…1). In 8 bits a step of the joined tensor
is 2.5: every score becomes zero (onnxruntime#14233). Such a join is not quantized with the others,
nor are the nodes behind the join; all computing nodes lie before.
"""

from collections.abc import Mapping

import numpy as np

from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import GraphIndex, reached
from edgepack.packager.quantization.static.plan import Plan
from edgepack.packager.tensors.observations import Observation

_FEWEST_STEPS = 8
"""Steps of the joined scale that the smallest joined tensor must span at least."""


def find_mixed_scale_concats(
    index: GraphIndex, plan: Plan, activations: str, observed: Mapping[str, Observation]
) -> frozenset[str]:
    """Return the names of quantized nodes that join uneven values, and of the nodes behind.

    Args:
        index: The float graph.
        plan: Quantized parts without an exclusion.
        activations: Their integer type, which says how many steps there are.
        observed: Observations at calibration.

    Returns:
        Nodes that this type is too coarse for; empty where only the inputs of the compute are
        quantized.
    """
    steps = 2.0 ** (8 * np.dtype(activations).itemsize)
    found: set[str] = set()
    quantized = {node.position: node.name for node in plan.nodes}
    for position, name in quantized.items():
        node = index.graph.node[position]
        if node.op_type != "Concat":
            continue
        sizes = [
            max(abs(observed[tensor].low), abs(observed[tensor].high))
            for tensor in node.input
            if tensor in observed
        ]
        after = _moves_to_outputs(index, position)
        if after is None or len(sizes) < 2 or not min(sizes):
            continue
        if max(sizes) / min(sizes) > steps / _FEWEST_STEPS:
            found.add(name)
            found |= {quantized[p] for p in after if p in quantized}
    return frozenset(found)


def _moves_to_outputs(index: GraphIndex, position: int) -> frozenset[int] | None:
    """Return the nodes after a node, if all only move its values to the graph's outputs."""
    nodes = index.graph.node

    def readers(place: int) -> list[int]:
        return [reader for name in nodes[place].output for reader in index.consumers.get(name, [])]

    after = reached(readers(position), readers)
    made = {name for place in (position, *after) for name in nodes[place].output}
    only_moves = all(facts(nodes[place].op_type).one_scale for place in after)
    return frozenset(after) if only_moves and index.body_reads.isdisjoint(made) else None
