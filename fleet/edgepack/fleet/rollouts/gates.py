"""What the gates of a rollout say, from sums alone: see `edgepack.fleet.documents.gates`.

A gate is judged for each hardware class by itself. Where too few devices of the current wave have
measured, those of the waves before are taken together with them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from edgepack.fleet.database.measurements import AWAITED, AWAITED_DRIFT, ClassSums, WaveSums
from edgepack.fleet.documents.gates import BY_NAME, GATES, Gate, GateVerdict, GateView
from edgepack.fleet.rollouts.bounds import mean_of
from edgepack.text import counted

LEAST_DEVICES = 3
"""Two that agree by chance would prove anything."""


class Plan(NamedTuple):
    """How a rollout is judged by what its devices measure.

    Attributes:
        thresholds: By gate, what is let pass; None switches it off, a missing one has its default.
        min_sample: Devices before a wave that is under way is judged.
        accepted: Breaches that a person saw and resumed after, as `key` gives them.
    """

    thresholds: Mapping[str, float | None]
    min_sample: int
    accepted: frozenset[str] = frozenset()

    def threshold(self, gate: Gate) -> float | None:
        """What a gate lets pass."""
        return self.thresholds.get(gate.name, gate.threshold if gate.is_default else None)

    @property
    def is_off(self) -> bool:
        """Whether nothing that devices measure is looked at."""
        return all(self.threshold(gate) is None for gate in GATES)


def key(gate: str, hardware_class: str) -> str:
    """How a breach is remembered that a person accepted."""
    return f"{gate}/{hardware_class}"


def awaited(plan: Plan, sums: ClassSums, wave: int) -> int:
    """Devices of the waves so far that measured before and did not yet tell what they do now."""
    names = [AWAITED]
    if plan.threshold(BY_NAME["drift"]) is not None:
        names.append(AWAITED_DRIFT)
    return sum(
        one.get(name, WaveSums()).devices
        for waves in sums.values()
        for one in waves[: wave + 1]
        for name in names
    )


def judge(plan: Plan, sums: ClassSums, wave: int, over: Collection[str]) -> tuple[GateView, ...]:
    """What each gate says of each hardware class that measured anything.

    Args:
        plan: How to judge.
        sums: What devices measured.
        wave: Index of the current wave.
        over: The classes of which all devices in it have decided: fewer than a sample will do.

    Returns:
        By gate and class; a gate for which no class has anything stands there once, without one.
    """
    views: list[GateView] = []
    for gate in GATES:
        told = {
            name: taken
            for name, waves in sorted(sums.items())
            if any(taken := _taken(gate.name, waves[: wave + 1], plan.min_sample))
        }
        for name, taken in told.items() or [("", WaveSums())]:
            views.append(_judge_one(gate, name, taken, plan, name in over))
    return tuple(views)


def _taken(gate: str, waves: Sequence[Mapping[str, WaveSums]], min_sample: int) -> WaveSums:
    """The sums of the last wave, and of those before it while they are of too few devices."""
    taken = WaveSums()
    for wave in reversed(waves):
        taken = taken.plus(wave.get(gate, WaveSums()))
        if taken.devices >= min_sample:
            break
    return taken


def _judge_one(
    gate: Gate, hardware_class: str, sums: WaveSums, plan: Plan, is_over: bool
) -> GateView:
    threshold = plan.threshold(gate)
    is_ratio = gate.comparison == "ratio"
    value = bound = before = now = None
    if sums.devices:
        value, before = sums.total / sums.devices, sums.before / sums.devices
        now = before + value
        if sums.devices >= LEAST_DEVICES:
            bound = mean_of(sums.devices, sums.total, sums.squares).bound
        if is_ratio:
            value, before, now = math.exp(value), math.exp(before), math.exp(now)
            bound = None if bound is None else math.exp(bound)
        elif gate.comparison == "share":
            before = None
    needed = LEAST_DEVICES if is_over else max(LEAST_DEVICES, plan.min_sample)
    verdict, because = _verdict(gate, sums, threshold, needed, value, bound)
    if verdict == "breach" and key(gate.name, hardware_class) in plan.accepted:
        verdict, because = "accepted", f"{because}; a person resumed after it"
    return GateView(
        name=gate.name,
        hardware_class=hardware_class,
        threshold=threshold,
        comparison=gate.comparison,
        unit=gate.unit,
        devices=sums.devices,
        value=value,
        bound=bound,
        before=before,
        now=now,
        verdict=verdict,
        because=because,
    )


def _verdict(
    gate: Gate,
    sums: WaveSums,
    threshold: float | None,
    needed: int,
    value: float | None,
    bound: float | None,
) -> tuple[GateVerdict, str]:
    devices = counted(sums.devices, "device")
    if threshold is None:
        return "off", "switched off"
    if value is None and sums.unbased:
        told = counted(sums.unbased, "device")
        return "no baseline", f"{told} measured it, and nothing is known of the release before"
    if value is None:
        return "no evidence", "no device measured it"
    if bound is None or sums.devices < needed:
        return "too few", f"{devices} measured it, {needed} are needed"
    said = (
        f"{gate.shown(value)} over {devices}, {gate.shown(bound)} or more with 97.5 % confidence; "
        f"{gate.shown(threshold)} is let pass"
    )
    return ("breach" if bound > threshold else "pass"), said
