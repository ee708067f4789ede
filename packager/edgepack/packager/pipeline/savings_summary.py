"""Savings of a variant in bytes and computing against the float model, with notes."""

from pathlib import Path

from edgepack.packager.gates.checks import LITTLE_SAVED, Advice
from edgepack.packager.graph.model_files import load_model
from edgepack.packager.graph.workload import float_weights
from edgepack.packager.pipeline.selection import SearchedCombination
from edgepack.packager.quantization.savings import lost_computing
from edgepack.packager.search.candidates import Candidate

_NOTHING_SAVED = 0.99
"""Share of the float model's bytes, and of its multiply-accumulates, from which on a model with
integers does what the float one does."""

_MUCH_OF_THE_WEIGHTS = 0.5
"""Share of float weights, by bytes, above which they are reported as the reason for the size."""


def saves_nothing(searched: SearchedCombination) -> bool:
    """Return True for the float model in place of lowered ones, and for a lowered model with its
    bytes and multiply-accumulates.
    """
    found, best = searched.selection.found, _lowered(searched)
    if found is None or best is None:
        return found is not None
    computing = lost_computing(found.sensitive_nodes, best.float_nodes)
    return min(_size_share(searched), computing) >= _NOTHING_SAVED


def saves_little(searched: SearchedCombination) -> bool:
    """Return True if so much of a lowered model stays float that another profile is worth a
    look.
    """
    best = _lowered(searched)
    if best is None or not best.float_nodes:
        return False
    computing = _float_computing(searched, best)
    return max(_size_share(searched), len(best.float_nodes) / best.total, computing) > LITTLE_SAVED


def describe_little(searched: SearchedCombination, advice: Advice | None) -> tuple[str, ...]:
    """State so where little is saved.

    Args:
        searched: The published model.
        advice: Expected results of other profiles for the device; None if unknown.
    """
    best, share = _lowered(searched), _size_share(searched)
    if best is None:
        return ()
    if not best.float_nodes:
        return _describe_never_lowered(best.path, share) if share > LITTLE_SAVED else ()
    if not saves_little(searched):
        return ()
    float_share = f"{len(best.float_nodes) / best.total:.0%} of the nodes"
    if computing := _float_computing(searched, best):
        float_share += f" with {computing:.0%} of the multiply-accumulates"
    instead = f" Instead: {advice.instead}." if advice and advice.instead else ""
    return (
        f"Little is saved: {float_share} stay float, and it takes {share:.0%} "
        f"of the float model's bytes.{instead}",
        *(advice.learnt if advice else ()),
    )


def _lowered(searched: SearchedCombination) -> Candidate | None:
    """Return the candidate that is published; None where the float model is."""
    found = searched.selection.found
    return found.best if found is not None and searched.selection.is_lowered else None


def _float_computing(searched: SearchedCombination, best: Candidate) -> float:
    """Return share of the multiply-accumulates in float nodes; 0 where lowering makes none
    cheaper.
    """
    found = searched.selection.found
    nodes = found.sensitive_nodes if found is not None else ()
    is_known = any(node.macs for node in nodes)
    return lost_computing(nodes, best.float_nodes) if is_known else 0.0


def _size_share(searched: SearchedCombination) -> float:
    return searched.size_bytes / searched.prepared.size_bytes


def _describe_never_lowered(model: Path, share: float) -> tuple[str, ...]:
    """Name the operators that the recipe leaves float, where these hold much of a model."""
    kept = float_weights(load_model(model).graph)
    if sum(kept.values()) < _MUCH_OF_THE_WEIGHTS:
        return ()
    names = ", ".join(
        f"{kind} ({held:.0%} of the bytes of all weights)" for kind, held in kept.items()
    )
    return (
        f"Little is saved: it takes {share:.0%} of the float model's bytes. What the profile's "
        f"recipe leaves float holds most of them: {names}.",
    )
