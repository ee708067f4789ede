"""What few held-out samples are worth: whether they prove a budget, and what they may forgive.

A variant is published by what they show, not by what they prove: thirty that all agree are no
proof of .98, and nobody gives the 133 that are for a first build. So what is not proven is said,
with the number of samples that would do.

Of few, one may always decide otherwise: a single near tie would refuse a build. That says nothing
where the float model hesitated itself. Where it was sure, one of thirty is 3 % of its task.

And of few, all may agree though others will not: what is expected of those is told by margins and
errors (`metrics.decisions`). A variant that is expected to lose more than it may sends the search
on; one that is expected to lose twice as much is refused.
"""

from msgspec.structs import replace

from edgepack.packager.gates.verdict import Verdict
from edgepack.tasks.contract import LOSS
from edgepack.tasks.intervals import count_to_prove

_MOST = 100_000
"""More are not asked for: the value is as good as the budget."""


def without_dear_forgiveness(verdict: Verdict) -> Verdict:
    """The same, but where what is forgiven costs more than a model may lose: then it fails."""
    if verdict.costs <= LOSS or verdict.asked is None:
        return verdict
    return replace(
        verdict,
        budget=verdict.asked,
        passed=False,
        spare=(verdict.value - verdict.asked) / (verdict.float_value - verdict.asked),
        forgiven=False,
    )


def is_doubtful(verdict: Verdict) -> bool:
    """Whether something is lost, and the odds are worse than four to one that the budget holds.

    Half of the way to the lower bound lie 0.82 standard errors: one value in five is further off.
    What loses nothing on few samples gives no reason to doubt it.
    """
    low = verdict.low_as_seen
    if low is None or verdict.asked is None or verdict.value >= verdict.float_value:
        return False
    return (verdict.value + low) / 2.0 < verdict.asked


def is_proven(verdict: Verdict) -> bool:
    """Whether the lower bound holds the budget; what has no bound is not told."""
    if verdict.low is None or verdict.asked is None:
        return True
    return verdict.low >= verdict.asked


def samples_to_prove(verdict: Verdict, count: int) -> int | None:
    """How many samples would prove the budget, if they agree as well; None where none would.

    Args:
        verdict: What was found.
        count: On how many samples.
    """
    asked = verdict.asked
    if asked is None:
        return None
    needed = [
        count_to_prove(nears, low, asked, count) for nears, low in verdict.bounds if low < asked
    ]
    enough = [number for number in needed if number is not None and number <= _MOST]
    return max(enough) if enough and len(enough) == len(needed) else None
