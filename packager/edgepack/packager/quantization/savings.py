"""What lowering a model's nodes saves, and what of that is given away with nodes that are spared.

Where activations are lowered too, what is saved is computing. A node that is spared gives its
multiply-accumulates away, and costs conversions at its edges whatever it computes, so its share of
the nodes counts as much. Where weights alone are lowered, what is saved is their bytes.
"""

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from edgepack.packager.graph.workload import Workload
from edgepack.packager.quantization.contract import NodeCost

_LEAST_BYTES = 0.01
"""Share of the weights' bytes for which one more candidate is tried."""

_LEAST_NOISE = 1e-6
"""What float rounding makes of a node that costs nothing."""


def with_workloads(
    costs: Sequence[NodeCost], loads: Mapping[str, Workload]
) -> tuple[NodeCost, ...]:
    """The same costs with what the nodes keep and compute.

    Args:
        costs: What lowering each node costs.
        loads: By node; one that is not among them counts as nothing.
    """
    return tuple(
        replace(cost, weight_bytes=load.weight_bytes, macs=load.macs)
        for cost in costs
        for load in (loads.get(cost.name, Workload()),)
    )


def in_sparing_order(costs: Sequence[NodeCost]) -> tuple[NodeCost, ...]:
    """The order in which nodes are spared.

    Of weights those come first that make the most noise power for a byte: errors of several nodes
    add up as powers, and a table of half the model's bytes buys no more than a matrix as noisy. Of
    nodes that compute the noisiest come first: by noise for a multiply-accumulate, a text
    recognizer and a speech detector did not get within the budget with as many nodes float, since
    small nodes came first and large ones stayed.

    Args:
        costs: Every node, worst first.
    """
    if not _saves_bytes(costs):
        return tuple(costs)
    return tuple(
        sorted(costs, key=lambda cost: (-(cost.noise**2) / max(cost.weight_bytes, 1), cost.name))
    )


def given_away(costs: Sequence[NodeCost], spared: Collection[str]) -> float:
    """Share that spared nodes give away of what lowering every node saves, 0…1.

    Args:
        costs: Every node that can be lowered.
        spared: Names of some of them.
    """
    if not spared:
        return 0.0
    of_nodes = len(spared) / max(len(costs), len(spared))
    share = _share(costs, spared)
    if share is None:
        return of_nodes
    return (share + of_nodes) / 2 if _saves_computing(costs) else share


def computing_given_away(costs: Sequence[NodeCost], spared: Collection[str]) -> float:
    """Share of the multiply-accumulates that spared nodes give away, 0…1.

    Args:
        costs: Every node that can be lowered.
        spared: Names of some of them.

    Returns:
        1.0 where nodes are spared, and lowering makes no node's multiply-accumulates cheaper or
        they cannot be counted.
    """
    if not spared:
        return 0.0
    share = _share(costs, spared) if _saves_computing(costs) else None
    return 1.0 if share is None else share


def worth_lowering(costs: Sequence[NodeCost], spared: Sequence[str]) -> tuple[str, ...]:
    """Spared nodes that it may pay to lower again, those first that save the most for their noise.

    By what they save alone, tries went to large nodes that were spared with good reason.

    Args:
        costs: Every node that can be lowered.
        spared: Names of some of them, in the order in which they were spared.
    """
    least = _LEAST_BYTES if _saves_bytes(costs) else 0.0
    noises = {cost.name: cost.noise for cost in costs}
    given = {name: given_away(costs, (name,)) for name in reversed(spared)}
    return tuple(
        sorted(
            (name for name, share in given.items() if share >= least),
            key=lambda name: -given[name] / max(noises.get(name, 0.0), _LEAST_NOISE),
        )
    )


def describe_share(costs: Sequence[NodeCost], spared: Collection[str]) -> str:
    """What spared nodes give away, for people: "12% of the multiply-accumulates"; "" if unknown."""
    share = _share(costs, spared)
    if not spared or share is None:
        return ""
    what = "multiply-accumulates" if _saves_computing(costs) else "weights' bytes"
    return f"{share:.0%} of the {what}"


def _share(costs: Sequence[NodeCost], spared: Collection[str]) -> float | None:
    """Share of the multiply-accumulates, or else of the bytes; None where there are none."""
    saved = _saved(costs)
    total = sum(saved.values())
    return sum(saved.get(name, 0) for name in spared) / total if total else None


def _saves_bytes(costs: Sequence[NodeCost]) -> bool:
    return any(cost.weight_bytes for cost in costs) and not _saves_computing(costs)


def _saves_computing(costs: Sequence[NodeCost]) -> bool:
    return any(cost.macs for cost in costs)


def _saved(costs: Sequence[NodeCost]) -> dict[str, int]:
    computing = _saves_computing(costs)
    return {cost.name: cost.macs if computing else cost.weight_bytes for cost in costs}
