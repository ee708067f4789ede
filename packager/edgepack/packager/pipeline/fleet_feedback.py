"""Feedback of a fleet about earlier releases, and its use in a build.

A profile is left out if its variant lost to the CPU on every kind of tested hardware: the variant
costs build time and bytes on every device, and serves on none. All other profiles are ordered by
the number of devices that serve their variants; devices try variants in this order. Simulators are
passed over: their times say nothing of real hardware. If devices reported more errors than a budget
allows, a tighter budget is proposed (`proposed_budget`).

A tighter accuracy budget, where real devices saw more errors than the build's gate accepted.

The budget is only proposed: a person who agrees writes the budget into a profile. Two things are
evidence, of the newest release that has any:

- shadow inferences, if the gate evaluated decisions: the mean over devices of the share that
  agreed, if below the budget with a confidence of 97.5 %;
- golden samples, where the gate judged numbers: the greatest error, if devices found the outputs
  wrong and the error alone is more than the budget allows.

The budget is tightened by the factor of the miss: if the field lost 2.5 times the allowed loss, the
budget allows 2.5 times less.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from edgepack.bundle.feedback import DriftedFeature, Evidence, Feedback, read_feedback
from edgepack.bundle.metadata import Feature
from edgepack.errors import BuildError
from edgepack.packager.profiles.schema import ANY, Profile, keep_of
from edgepack.packager.reports.report import BudgetProposal
from edgepack.tasks.classification.measure import TOP1
from edgepack.tasks.contract import Scale
from edgepack.tasks.values.measure import EXPLAINED
from edgepack.text import counted

CPU = "CPUExecutionProvider"
COVERED = 0.5
"""Share of the way from the earlier build's mean to the devices' mean that a build's samples must
have gone to cover a drifted feature. Means of devices lag behind a sudden change."""
LEAST_DRIFT = 0.5
"""Standard deviations of a difference to which a build responds, at least."""
FEWEST_DEVICES = 5
"""Devices that must have tried a variant before its profile is left out. A variant that serves on
half of all devices fails on five by chance once in 32 times."""


class Learnt(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a build takes from feedback.

    Attributes:
        evidence: Measurements of the requested profiles, the newest release first.
        left_out: By profile the reason for leaving the profile out.
        serves_on: By profile on how many devices its variant serves.
        proposals: Budgets that profiles might ask for; none is changed.
        drifted: Features that differ on real devices, of the newest release that has any.
        drifted_in: Version of that release.
        loss: Share of the task that fallen confidence costs there; None without evidence of harm.
    """

    evidence: tuple[Evidence, ...] = ()
    left_out: Mapping[str, str] = {}
    serves_on: Mapping[str, int] = {}
    proposals: tuple[BudgetProposal, ...] = ()
    drifted: tuple[DriftedFeature, ...] = ()
    drifted_in: str = ""
    loss: float | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for a person, a sentence for each excluded profile."""
        return tuple(f"{name} is left out: {why}." for name, why in self.left_out.items())


def learn(path: Path | None, model: str, profiles: Sequence[Profile]) -> Learnt:
    """Read a file of feedback, and evaluate the requested profiles.

    Args:
        path: The file; None where there is none.
        model: The name of the model that is built.
        profiles: Requested profiles.

    Raises:
        BuildError: The feedback is for another model.
        EdgepackError: The file cannot be read.
    """
    if path is None:
        return Learnt()
    feedback = read_feedback(path)
    if feedback.model != model:
        raise BuildError(
            f"the feedback is of {feedback.model!r}, and this builds {model!r}",
            found_in=str(path),
            remedy=f"edgepack fleet feedback {model} -o feedback.json",
        )
    return judge(feedback, profiles)


def judge(feedback: Feedback, profiles: Sequence[Profile]) -> Learnt:
    """Evaluate the feedback for profiles.

    Args:
        feedback: Measurements of a fleet.
        profiles: Requested profiles.
    """
    names = {profile.name for profile in profiles}
    evidence = tuple(entry for entry in feedback.evidence if entry.variant in names)
    real = [entry for entry in evidence if not entry.is_simulator]
    served = Counter[str]()
    for entry in real:
        served[entry.variant] += entry.chosen
    left_out = {}
    if any(profile.device.provider == CPU for profile in profiles):
        for profile in profiles:
            if profile.device.provider != CPU and (why := _why_it_loses(profile.name, real)):
                left_out[profile.name] = why
    built = [profile for profile in profiles if profile.name not in left_out]
    told = [entry for entry in feedback.evidence if entry.drifted and not entry.is_simulator]
    newest = [entry for entry in told if entry.digest == told[0].digest]
    return Learnt(
        evidence=evidence,
        left_out=left_out,
        serves_on=dict(served),
        proposals=propose_budgets(built, evidence),
        drifted=_join_drifted(newest),
        drifted_in=newest[0].version if newest else "",
        loss=max((entry.loss for entry in newest if entry.loss is not None), default=None),
    )


def _join_drifted(evidence: Iterable[Evidence]) -> tuple[DriftedFeature, ...]:
    """Return the notable features of all kinds of devices; of a feature the greatest difference."""
    found: dict[str, DriftedFeature] = {}
    for entry in evidence:
        for one in entry.drifted:
            if one.is_change or one.difference >= LEAST_DRIFT:
                before = found.get(one.words, one)
                devices = one.devices + (before.devices if one.words in found else 0)
                worst = max(before, one, key=lambda each: each.difference)
                found[one.words] = msgspec.structs.replace(worst, devices=devices)
    return tuple(sorted(found.values(), key=lambda one: -one.difference))


def respond(learnt: Learnt, reference: Iterable[Feature], captured: int, model: str) -> list[str]:
    """Return the build's response to the drift that devices reported, a sentence for each feature.

    Args:
        learnt: Facts of the feedback.
        reference: Features of this build's samples.
        captured: Captured samples that were added to the samples for ranges.
        model: The model's name.
    """
    known = {one.words: one for one in reference}
    lines = []
    for one in learnt.drifted:
        own = known.get(one.words)
        seen = (
            f"{counted(one.devices, 'device')} reported drift in {learnt.drifted_in}: {one.words} "
            f"is {one.now:.3g} and was {one.build:.3g} at the build"
        )
        if own is not None and (own.mean - one.build) / (one.now - one.build or 1.0) >= COVERED:
            done = f"this build's samples have {own.mean:.3g}, so ranges and verdict hold for it"
        elif captured:
            done = (
                f"{counted(captured, 'captured sample')} widen the ranges, and the verdict stays "
                "on the given samples"
            )
        else:
            have = f"have {own.mean:.3g}" if own is not None else "do not show it"
            done = (
                f"this build's samples {have}, so nothing changes; edgepack fleet capture {model} "
                "asks devices for samples"
            )
        lines.append(f"{seen}; {done}.")
    if learnt.loss is not None:
        lines.append(
            f"Devices estimate that the fallen confidence in {learnt.drifted_in} costs "
            f"{learnt.loss:.0%} of the task."
        )
    return lines


def _why_it_loses(name: str, evidence: Iterable[Evidence]) -> str:
    """Return why a variant serves on no device; "" if the variant may serve."""
    places: dict[tuple[str, str], list[Evidence]] = defaultdict(list)
    for entry in evidence:
        places[entry.digest, entry.hardware_class].append(entry)
    devices, worst = 0, ""
    for (_, hardware_class), tried in places.items():
        own = [entry for entry in tried if entry.variant == name and entry.probed]
        if not own:
            continue
        devices += sum(entry.probed for entry in own)
        cpu_ms = min(
            (e.probe_ms for e in tried if e.provider == CPU and e.right and e.probe_ms is not None),
            default=None,
        )
        if any(entry.chosen or _may_win(entry, cpu_ms) for entry in own):
            return ""
        (first, *_) = own
        worst = (
            f"{first.probe_ms:.3g} ms beside {cpu_ms:.3g} ms on the CPU of {hardware_class}"
            if first.right and first.probe_ms is not None and cpu_ms is not None
            else f"wrong on {hardware_class} ({first.wrong_because})"
        )
    if devices < FEWEST_DEVICES:
        return ""
    return f"it serves on none of the {counted(devices, 'device')} that tried it: {worst}"


def _may_win(entry: Evidence, cpu_ms: float | None) -> bool:
    """Return True if a variant that serves nowhere yet would be taken: right, and faster than the
    CPU.
    """
    if not entry.right:
        return False
    return cpu_ms is None or entry.probe_ms is None or entry.probe_ms < cpu_ms


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
    if scale is TOP1 and entry.shadow_mean is not None and entry.shadow_most is not None:
        found = entry.shadow_mean
        if entry.shadow_most >= budget:
            return None
        seen = f"{found:.1%} of shadow inferences agreed (mean of {entry.shadow_devices} devices)"
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
