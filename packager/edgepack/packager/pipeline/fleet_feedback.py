"""Feedback of a fleet about earlier releases, and its use in a build.

A profile is left out if its variant lost to the CPU on every kind of tested hardware: the variant
costs build time and bytes on every device, and serves on none. All other profiles are ordered by
the number of devices that serve their variants; devices try variants in this order. Simulators are
passed over: their times say nothing of real hardware. If devices reported more errors than a budget
allows, a tighter budget is proposed (`proposed_budget`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from edgepack.bundle.feedback import Evidence, Feedback, read_feedback
from edgepack.errors import BuildError
from edgepack.packager.pipeline.proposed_budget import propose_budgets
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.reports.report import BudgetProposal
from edgepack.text import counted

CPU = "CPUExecutionProvider"
FEWEST_DEVICES = 5
"""Devices that must have tried a variant before its profile is left out."""


class Learnt(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that a build takes from feedback.

    Attributes:
        evidence: Measurements of the requested profiles, the newest release first.
        left_out: By profile the reason for leaving the profile out.
        serves_on: By profile on how many devices its variant serves.
        proposals: Budgets that profiles might ask for; none is changed.
    """

    evidence: tuple[Evidence, ...] = ()
    left_out: Mapping[str, str] = {}
    serves_on: Mapping[str, int] = {}
    proposals: tuple[BudgetProposal, ...] = ()

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
    return Learnt(
        evidence=evidence,
        left_out=left_out,
        serves_on=dict(served),
        proposals=propose_budgets(built, evidence),
    )


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
