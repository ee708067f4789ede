"""What a variant saves of the float model's bytes and computing, and what is said of little."""

from pathlib import Path

from edgepack.packager.gates.checks import LITTLE_SAVED, Advice
from edgepack.packager.graph.model_files import load_model
from edgepack.packager.graph.workload import float_weights
from edgepack.packager.pipeline.prepared_combination import Explored
from edgepack.packager.quantization.savings import computing_given_away
from edgepack.packager.search.candidates import Candidate

_NOTHING_SAVED = 0.99
"""Share of the float model's bytes, and of its multiply-accumulates, from which on a model with
integers does what the float one does."""

_MUCH_OF_THE_WEIGHTS = 0.5
"""Share of a lowered model's bytes of weights; more than that in floats is why it is no smaller."""


def saves_nothing(explored: Explored) -> bool:
    """Whether a lowered model has the bytes and the multiply-accumulates of the float one."""
    found, best = explored.chosen.found, _lowered(explored)
    if found is None or best is None:
        return False
    computing = computing_given_away(found.culprits, best.float_nodes)
    return min(_size_share(explored), computing) >= _NOTHING_SAVED


def saves_little(explored: Explored) -> bool:
    """Whether so much of a lowered model stays float that another profile is worth a look."""
    best = _lowered(explored)
    if best is None or not best.float_nodes:
        return False
    computing = _float_computing(explored, best)
    return max(_size_share(explored), len(best.float_nodes) / best.total, computing) > LITTLE_SAVED


def describe_little(explored: Explored, advice: Advice | None) -> tuple[str, ...]:
    """Says so where little is saved.

    Args:
        explored: What is published.
        advice: What other profiles for the device would do; None where nothing is known.
    """
    best, share = _lowered(explored), _size_share(explored)
    if best is None:
        return ()
    if not best.float_nodes:
        return _describe_never_lowered(best.path, share) if share > LITTLE_SAVED else ()
    if not saves_little(explored):
        return ()
    float_share = f"{len(best.float_nodes) / best.total:.0%} of the nodes"
    if computing := _float_computing(explored, best):
        float_share += f" with {computing:.0%} of the multiply-accumulates"
    instead = f" Instead: {advice.instead}." if advice and advice.instead else ""
    return (
        f"Little is saved: {float_share} stay float, and it takes {share:.0%} "
        f"of the float model's bytes.{instead}",
        *(advice.learnt if advice else ()),
    )


def _lowered(explored: Explored) -> Candidate | None:
    """The candidate that is published; None where the float model is."""
    found = explored.chosen.found
    return found.best if found is not None and explored.chosen.is_lowered else None


def _float_computing(explored: Explored, best: Candidate) -> float:
    """Share of the multiply-accumulates in float nodes; 0 where lowering makes none cheaper."""
    found = explored.chosen.found
    costs = found.culprits if found is not None else ()
    is_known = any(cost.macs for cost in costs)
    return computing_given_away(costs, best.float_nodes) if is_known else 0.0


def _size_share(explored: Explored) -> float:
    return explored.size_bytes / explored.prepared.size_bytes


def _describe_never_lowered(model: Path, share: float) -> tuple[str, ...]:
    """Names the operators that the recipe leaves float, where these hold much of a model."""
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
