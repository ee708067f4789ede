"""Evidence of few held-out samples: proof of a budget, and limits of tolerated mismatches.

A variant is published by its observed value, not by a proof: thirty samples that all agree do not
prove .98, and nobody gives 133 samples for a first build. So a missing proof is reported, with the
sufficient number of samples.

Among few samples, a single mismatch is tolerated: a single near tie would refuse a build. That says
nothing where the float model hesitated itself. If the float model was sure, 1 of thirty is 3 % of
its task.

And few samples may all agree although others will not: margins and errors give the expected loss on
others (`metrics.decisions`). A variant with an expected loss above the allowed loss makes the
search continue; twice the allowed loss fails the gate.
"""

from msgspec.structs import replace

from edgepack.packager.gates.verdict import Verdict
from edgepack.tasks.contract import LOSS
from edgepack.tasks.intervals import count_to_prove

_MOST = 100_000
"""More are not asked for: the value is as good as the budget."""


def without_dear_forgiveness(verdict: Verdict) -> Verdict:
    """Return the verdict, failed if the tolerated mismatches cost more than the allowed loss."""
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
    """Return True if there is a loss, and the odds are worse than four to one that the budget
    holds.

    Half of the distance to the lower bound is 0.82 standard errors: 1 value in five is further off.
    A variant without a loss on few samples gives no reason for doubt.
    """
    low = verdict.low_as_seen
    if low is None or verdict.asked is None or verdict.value >= verdict.float_value:
        return False
    return (verdict.value + low) / 2.0 < verdict.asked


def is_proven(verdict: Verdict) -> bool:
    """Return True if the lower bound holds the budget; without a bound, too."""
    if verdict.low is None or verdict.asked is None:
        return True
    return verdict.low >= verdict.asked


def samples_to_prove(verdict: Verdict, count: int) -> int | None:
    """Return the number of samples that would prove the budget at the same agreement; None if no
    number would.

    Args:
        verdict: The verdict.
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
