"""A tighter accuracy budget, where real devices saw more errors than the build's gate accepted.

The budget is only proposed: a person who agrees writes the budget into a profile. Two things are
evidence, of the newest release that has any:

- shadow inferences, if the gate evaluated decisions: the share that agreed, if below the budget
  with a confidence of 97.5 %;
- golden samples, where the gate judged numbers: the greatest error, if devices found the outputs
  wrong and the error alone is more than the budget allows.

The budget is tightened by the factor of the miss: if the field lost 2.5 times the allowed loss, the
budget allows 2.5 times less.
"""

from collections.abc import Iterable, Mapping, Sequence

from edgepack.bundle.feedback import Evidence
from edgepack.packager.profiles.schema import ANY, Profile, keep_of
from edgepack.packager.reports.report import BudgetProposal
from edgepack.tasks.classification.measure import TOP1
from edgepack.tasks.contract import Scale
from edgepack.tasks.intervals import share_bounds
from edgepack.tasks.values.measure import EXPLAINED

FEWEST_SHADOW = 60
"""Shadow inferences below which they prove nothing; the gate of rollouts has the same."""
FEWEST_WRONG = 3
"""Devices that must find golden outputs wrong: one may be broken."""

_SCALES: Mapping[str, tuple[str, Scale]] = {
    TOP1.metric: ("classification", TOP1),
    EXPLAINED.metric: (ANY, EXPLAINED),
}
"""By metric, the task whose budget it is held against and its scale."""


def propose_budgets(
    profiles: Sequence[Profile], evidence: Sequence[Evidence]
) -> tuple[BudgetProposal, ...]:
    """Propose tighter budgets from devices' measurements of a profile's variants.

    Args:
        profiles: Profiles of the build.
        evidence: Measurements of a fleet, the newest release first.

    Returns:
        At most 1 per profile; never less strict than the profile.
    """
    return tuple(
        proposal
        for profile in profiles
        if (proposal := _propose(profile.name, _of_newest(profile.name, evidence))) is not None
        and proposal.keep > keep_of(profile.gates.accuracy, proposal.task)
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
    return max(found, key=lambda one: one.keep, default=None)


def _tighter(profile: str, entry: Evidence) -> BudgetProposal | None:
    metric, _, _ = entry.metric.partition(" (")
    budget, wrong = entry.budget, entry.probed - entry.right
    error = entry.worst_nrmse or 0.0
    if budget is None or metric not in _SCALES or not 0.0 < budget < 1.0:
        return None
    task, scale = _SCALES[metric]
    if scale is TOP1 and entry.shadow_count >= FEWEST_SHADOW:
        found = min(1.0, entry.shadow_agreed / entry.shadow_count)
        if share_bounds(found, entry.shadow_count)[1] >= budget:
            return None
        seen = f"{entry.shadow_agreed:,} of {entry.shadow_count:,} shadow inferences agreed"
    elif scale is EXPLAINED and wrong >= FEWEST_WRONG and error > 0.0:
        found = max(0.0, 1.0 - error * error)
        if found >= budget:
            return None
        seen = (
            f"golden outputs were wrong on {wrong} of {entry.probed} devices, with a relative "
            f"error of {error:.3g}"
        )
    else:
        return None
    least = 1.0 - (1.0 - budget) ** 2 / (1.0 - found)
    return BudgetProposal(
        profile=profile,
        task=task,
        keep=round(scale.kept(least), 5),
        because=f"on {entry.hardware_class}, {seen} in {entry.version}; its build let "
        f"{metric} {budget:g} pass",
    )
