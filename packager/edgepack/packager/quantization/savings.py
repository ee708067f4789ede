"""Savings of lowering a model's nodes, and the part lost by promoted nodes.

A promoted node stays float, or gets more bits than the others. If activations are lowered too,
lowering saves computing: a promoted node loses its multiply-accumulates, and costs conversions at
its edges, so its share of the nodes counts as much. If weights alone are lowered, lowering saves
their bytes.
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from edgepack.packager.graph.workload import Workload
from edgepack.packager.quantization.contract import NodeSensitivity

_LEAST_BYTES = 0.01
"""Share of the weights' bytes for which one more candidate is tried."""

_FEW_FLOAT = 4
"""Nodes that may stay float in a model of few nodes, whatever share of the nodes they are: its last
products and the bias and scale of its outputs, where quantities in units of their own need it."""

_LEAST_NOISE = 1e-6
"""What float rounding makes of a node that costs nothing."""


def with_workloads(
    nodes: Sequence[NodeSensitivity], loads: Mapping[str, Workload]
) -> tuple[NodeSensitivity, ...]:
    """Return the same nodes with their weight bytes and multiply-accumulates.

    Args:
        nodes: Costs of lowering each node.
        loads: By node; a missing node counts as nothing.
    """
    return tuple(
        replace(node, weight_bytes=load.weight_bytes, macs=load.macs)
        for node in nodes
        for load in (loads.get(node.name, Workload()),)
    )


def promotion_order(nodes: Sequence[NodeSensitivity]) -> tuple[str, ...]:
    """Return the names of nodes in the order of promotion.

    For weights the nodes with the most noise power per byte come first: errors of several nodes add
    up as powers, and a table of half the model's bytes gains no more than an equally noisy matrix.
    For computing nodes the noisiest come first: by noise per multiply-accumulate, a text recognizer
    and a speech detector did not get within the budget with as many nodes float, since small nodes
    came first and large nodes stayed.

    Args:
        nodes: Every node, worst first.
    """
    if saves_bytes(nodes):
        nodes = sorted(
            nodes, key=lambda node: (-(node.noise**2) / max(node.weight_bytes, 1), node.name)
        )
    return tuple(node.name for node in nodes)


def lost_savings(nodes: Sequence[NodeSensitivity], promoted: Collection[str]) -> float:
    """Return the share of all savings that promoted nodes lose, 0…1.

    Args:
        nodes: Every node that can be lowered.
        promoted: Names of promoted nodes.
    """
    if not promoted:
        return 0.0
    of_nodes = len(promoted) / max(len(nodes), len(promoted))
    share = _share(nodes, promoted)
    if share is None:
        return of_nodes
    return (share + of_nodes) / 2 if _saves_computing(nodes) else share


def lost_computing(nodes: Sequence[NodeSensitivity], promoted: Collection[str]) -> float:
    """Return share of the multiply-accumulates that promoted nodes lose, 0…1.

    Args:
        nodes: Every node that can be lowered.
        promoted: Names of promoted nodes.

    Returns:
        1.0 if nodes are promoted, and lowering makes no node's multiply-accumulates cheaper or the
        numbers are unknown.
    """
    if not promoted:
        return 0.0
    share = _share(nodes, promoted) if _saves_computing(nodes) else None
    return 1.0 if share is None else share


def most_float_nodes(
    nodes: Sequence[NodeSensitivity], names: Sequence[str], max_share: float
) -> int:
    """Return how many nodes may stay float: a share of the nodes; of few nodes also some that lose
    no more than this share of the multiply-accumulates.

    Args:
        nodes: Every node that can be lowered.
        names: Their names, in the order of promotion.
        max_share: The share, 0…1.
    """
    count = int(len(names) * max_share)
    most = min(_FEW_FLOAT, len(names) - 1) if max_share else 0
    while count < most and lost_computing(nodes, names[: count + 1]) <= max_share:
        count += 1
    return count


def worth_lowering(nodes: Sequence[NodeSensitivity], promoted: Sequence[str]) -> tuple[str, ...]:
    """Return promoted nodes that may be worth lowering again, nodes with the most savings per noise
    first.

    By savings alone, candidates were spent on large nodes that were promoted with good reason.

    Args:
        nodes: Every node that can be lowered.
        promoted: Names of promoted nodes, in the order of promotion.
    """
    least = _LEAST_BYTES if saves_bytes(nodes) else 0.0
    noises = {node.name: node.noise for node in nodes}
    lost = {name: lost_savings(nodes, (name,)) for name in reversed(promoted)}
    return tuple(
        sorted(
            (name for name, share in lost.items() if share >= least),
            key=lambda name: -lost[name] / max(noises.get(name, 0.0), _LEAST_NOISE),
        )
    )


def describe_share(nodes: Sequence[NodeSensitivity], promoted: Collection[str]) -> str:
    """Return the share of promoted nodes in words: "12% of the multiply-accumulates"; "" if
    unknown.
    """
    share = _share(nodes, promoted)
    if not promoted or share is None:
        return ""
    what = "multiply-accumulates" if _saves_computing(nodes) else "weights' bytes"
    return f"{share:.0%} of the {what}"


def _share(nodes: Sequence[NodeSensitivity], promoted: Collection[str]) -> float | None:
    """Return share of the multiply-accumulates, or else of the bytes; None where there are none."""
    saved = _saved(nodes)
    total = sum(saved.values())
    return sum(saved.get(name, 0) for name in promoted) / total if total else None


def saves_bytes(nodes: Sequence[NodeSensitivity]) -> bool:
    """Return True if lowering nodes saves bytes, and no computing."""
    return any(node.weight_bytes for node in nodes) and not _saves_computing(nodes)


def _saves_computing(nodes: Sequence[NodeSensitivity]) -> bool:
    return any(node.macs for node in nodes)


def _saved(nodes: Sequence[NodeSensitivity]) -> dict[str, int]:
    computing = _saves_computing(nodes)
    return {node.name: node.macs if computing else node.weight_bytes for node in nodes}
