"""A tighter accuracy budget, where real devices saw more errors than the build's gate accepted.

It is proposed and nothing else: a person who wants it writes it into a profile. Two things are
evidence, of the newest release that has any:

- shadow inferences, where the gate judged decisions: the share that agreed, if it is below the
  budget with a confidence of 97.5 %;
- golden samples, where the gate judged numbers: the greatest error, if devices found the outputs
  wrong and the error alone is more than the budget allows.

The budget is tightened as much as it was missed: where the field lost 2.5 times what is allowed,
2.5 times less is.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from edgepack.bundle.feedback import Evidence
from edgepack.packager.metrics.kinds import METRICS, MOST_DECIBELS
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.reports.report import BudgetProposal
from edgepack.tasks.intervals import share_bounds

FEWEST_SHADOW = 60
"""Shadow inferences below which they prove nothing; the gate of rollouts has the same."""
FEWEST_WRONG = 3
"""Devices that must find golden outputs wrong: one may be broken."""

_DECISIONS = "top1_agreement"
_DECIBELS = "sqnr_db"

_AT_BEST: Mapping[str, Callable[[float], float]] = {
    "cosine": lambda error: 1.0 - error * error / 2.0,
    "explained_variance": lambda error: 1.0 - error * error,
    _DECIBELS: lambda error: -20.0 * math.log10(error),
}
"""By metric, what a relative error leaves of it at the best."""
_BEST = {_DECIBELS: MOST_DECIBELS}


def propose_budgets(
    profiles: Sequence[Profile], evidence: Sequence[Evidence]
) -> tuple[BudgetProposal, ...]:
    """Propose tighter budgets from devices' measurements of a profile's variants.

    Args:
        profiles: What is built.
        evidence: What a fleet measured, the newest release first.

    Returns:
        At most one a profile; none that asks for less than the profile does.
    """
    return tuple(
        proposal
        for profile in profiles
        if (proposal := _propose(profile.name, _of_newest(profile.name, evidence))) is not None
        and proposal.least > getattr(profile.gates.accuracy, proposal.key)
    )


def _of_newest(name: str, evidence: Iterable[Evidence]) -> list[Evidence]:
    told = [
        entry
        for entry in evidence
        if entry.variant == name
        and not entry.is_simulator
        and entry.budget is not None
        and (entry.shadow_count or entry.probed)
    ]
    return [entry for entry in told if entry.digest == told[0].digest]


def _propose(profile: str, evidence: Iterable[Evidence]) -> BudgetProposal | None:
    found = [one for entry in evidence if (one := _tighter(profile, entry)) is not None]
    return max(found, key=lambda one: one.least, default=None)


def _tighter(profile: str, entry: Evidence) -> BudgetProposal | None:
    metric, _, _ = entry.metric.partition(" (")
    budget, wrong = entry.budget, entry.probed - entry.right
    if budget is None or not 0.0 < budget < _BEST.get(metric, 1.0):
        return None
    if metric == _DECISIONS and entry.shadow_count >= FEWEST_SHADOW:
        found = min(1.0, entry.shadow_agreed / entry.shadow_count)
        if share_bounds(found, entry.shadow_count)[1] >= budget:
            return None
        seen = f"{entry.shadow_agreed:,} of {entry.shadow_count:,} shadow inferences agreed"
    elif metric in _AT_BEST and wrong >= FEWEST_WRONG and (entry.worst_nrmse or 0.0) > 0.0:
        found = max(0.0, _AT_BEST[metric](entry.worst_nrmse or 0.0))
        if found >= budget:
            return None
        seen = (
            f"golden outputs were wrong on {wrong} of {entry.probed} devices, with a relative "
            f"error of {entry.worst_nrmse:.3g}"
        )
    else:
        return None
    return BudgetProposal(
        profile=profile,
        key=METRICS[metric].budget,  # type: ignore[index]
        least=_missed_by(metric, budget, found),
        because=f"on {entry.hardware_class}, {seen} in {entry.version}; its build let "
        f"{metric} {budget:g} pass",
    )


def _missed_by(metric: str, budget: float, found: float) -> float:
    """Return a budget that is as much tighter as it was missed."""
    if metric == _DECIBELS:
        return round(min(MOST_DECIBELS, budget + (budget - found)), 1)
    return round(1.0 - (1.0 - budget) ** 2 / (1.0 - found), 5)
