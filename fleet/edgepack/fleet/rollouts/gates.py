"""Gates of a rollout, evaluated from sums alone: see `edgepack.fleet.documents.gates`.

A gate is judged for each hardware class by itself. If too few devices of the current wave have
measured, the previous waves are added.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from edgepack.fleet.database.measurements import AWAITED, AWAITED_DRIFT, ClassSums, WaveSums
from edgepack.fleet.documents.gates import BY_NAME, GATES, Gate, GateVerdict, GateView
from edgepack.fleet.rollouts.bounds import bound_of_few, mean_of
from edgepack.text import counted

LEAST_DEVICES = 3
"""Two that agree by chance would prove anything: fewer hold a rollout, and do not end it."""
_EVIDENCE = ("p95", "p99", "errors")
"""Gates that need inferences of applications, that with the fewest first. The first that is on
counts the devices that a wave needs."""
_COMPARABLE = "fallbacks"
"""Each device that committed a release and ran another one before counts in the sums of this gate:
its probes measure it, and no application has to run."""


STOPS: frozenset[GateVerdict] = frozenset({"breach", "hold"})
"""Verdicts that stop a rollout, or a hardware class of it."""


class Plan(NamedTuple):
    """Plan of evaluation: thresholds and sample sizes of a rollout's gates.

    Attributes:
        thresholds: By gate, Threshold; None switches a gate off, a missing gate has its default.
        min_sample: Devices before a wave that is under way is judged.
        accepted: Breaches that a person accepted by resuming, as keys of `key` and `hold_key`, and
            waves that may begin without evidence, as keys of `evidence_key`.
        needs_evidence: Whether a wave that measured too little holds the rollout.
        items: The answers that the release's tasks count: `boxes`.
    """

    thresholds: Mapping[str, float | None]
    min_sample: int
    accepted: frozenset[str] = frozenset()
    needs_evidence: bool = True
    items: str = "answers"

    def threshold(self, gate: Gate) -> float | None:
        """Return the threshold of a gate."""
        return self.thresholds.get(gate.name, gate.threshold if gate.is_default else None)

    @property
    def is_off(self) -> bool:
        """True if nothing that devices measure is looked at."""
        return all(self.threshold(gate) is None for gate in GATES)


def key(gate: str, hardware_class: str) -> str:
    """Return the key of an accepted breach."""
    return f"{gate}/{hardware_class}"


def hold_key(gate: str, hardware_class: str) -> str:
    """Return how the breach of 1 or 2 devices is stored that a person accepted.

    Such a breach is evidence about these devices only, so a later breach of more devices counts.
    """
    return f"{gate}/{hardware_class}/few"


def evidence_key(wave: int) -> str:
    """Return the key for a person's acceptance of a wave that measured too little."""
    return f"evidence/{wave}"


def missing_evidence(plan: Plan, sums: ClassSums, wave: int) -> str:
    """Return the missing measurements of the waves so far, a sentence; "" for none.

    A hardware class measured enough if 3 of its devices measured, or all devices of a smaller
    class. Devices that ran no release of the model before have nothing to compare with and do not
    count.

    Args:
        plan: How to judge.
        sums: Measurements of devices.
        wave: Index of the current wave.
    """
    gate = next((name for name in _EVIDENCE if plan.threshold(BY_NAME[name]) is not None), "")
    if not gate or not plan.needs_evidence or evidence_key(wave) in plan.accepted:
        return ""
    lacking = []
    for name, waves in sorted(sums.items()):
        told = [one.get(gate, WaveSums()).devices for one in waves[: wave + 1]]
        comparable = [one.get(_COMPARABLE, WaveSums()).devices for one in waves[: wave + 1]]
        if sum(told) < min(LEAST_DEVICES, sum(comparable)):
            lacking.append(f"{sum(told)} of {counted(sum(comparable), 'device')} of {name}")
    if not lacking:
        return ""
    fewest = BY_NAME[gate].fewest
    return (
        f"too few measured {gate}: {', '.join(lacking)} (a device counts from {fewest} inferences "
        "on, of this release and of the one before)"
    )


def awaited(plan: Plan, sums: ClassSums, wave: int) -> int:
    """Return devices of the waves so far with measurements before, but not yet now."""
    names = [AWAITED]
    if plan.threshold(BY_NAME["drift"]) is not None:
        names.append(AWAITED_DRIFT)
    return sum(
        one.get(name, WaveSums()).devices
        for waves in sums.values()
        for one in waves[: wave + 1]
        for name in names
    )


def judge(
    plan: Plan,
    sums: ClassSums,
    wave: int,
    over: Collection[str],
    settled: Collection[str] | None = None,
) -> tuple[GateView, ...]:
    """Return the result of each gate for each hardware class with measurements.

    Args:
        plan: How to judge.
        sums: Measurements of devices.
        wave: Index of the current wave.
        over: The classes with all devices decided: a smaller sample is enough.
        settled: Classes with complete measurements: 1 or 2 devices that measured a breach hold the
            rollout. None means all of `over`.

    Returns:
        By gate and class; a gate without any class appears once, without a class.
    """
    views: list[GateView] = []
    for gate in GATES:
        told = {
            name: taken
            for name, waves in sorted(sums.items())
            if any(taken := _taken(gate.name, waves[: wave + 1], plan.min_sample))
        }
        for name, taken in told.items() or [("", WaveSums())]:
            is_settled = name in (over if settled is None else settled)
            view = _judge_one(gate, name, taken, plan, is_over=name in over, is_settled=is_settled)
            views.append(view)
    return tuple(views)


def _taken(gate: str, waves: Sequence[Mapping[str, WaveSums]], min_sample: int) -> WaveSums:
    """Return the sums of the last wave, plus the sums of previous waves while the devices are too
    few.
    """
    taken = WaveSums()
    for wave in reversed(waves):
        taken = taken.plus(wave.get(gate, WaveSums()))
        if taken.devices >= min_sample:
            break
    return taken


def _judge_one(
    gate: Gate,
    hardware_class: str,
    sums: WaveSums,
    plan: Plan,
    *,
    is_over: bool,
    is_settled: bool,
) -> GateView:
    threshold = plan.threshold(gate)
    is_ratio = gate.comparison == "ratio"
    value = bound = before = now = None
    if sums.devices:
        value, before = sums.total / sums.devices, sums.before / sums.devices
        now = before + value
        if sums.devices >= LEAST_DEVICES:
            bound = mean_of(sums.devices, sums.total, sums.squares).bound
        else:
            bound = bound_of_few(sums.devices, value, gate.spread)
        if is_ratio:
            value, before, now = math.exp(value), math.exp(before), math.exp(now)
            bound = None if bound is None else math.exp(bound)
        elif gate.comparison == "share":
            before = None
    needed = LEAST_DEVICES if is_over else max(LEAST_DEVICES, plan.min_sample)
    verdict, because = _verdict(gate, sums, plan, needed, value, bound)
    if verdict == "hold" and not is_settled:
        verdict = "too few"
    seen = hold_key if verdict == "hold" else key
    if verdict in STOPS and seen(gate.name, hardware_class) in plan.accepted:
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
    plan: Plan,
    needed: int,
    value: float | None,
    bound: float | None,
) -> tuple[GateVerdict, str]:
    threshold = plan.threshold(gate)
    devices = counted(sums.devices, "device")
    if threshold is None:
        return "off", "switched off"
    if value is None and sums.unbased:
        told = counted(sums.unbased, "device")
        return "no baseline", f"{told} measured it, and nothing is known of the release before"
    if value is None:
        return "no evidence", "no device measured it"
    if bound is None:
        return "too few", f"{devices} measured it, {needed} are needed"
    said = (
        f"{gate.worded(value, plan.items)} over {devices}, {gate.shown(bound)} or more with "
        f"97.5 % confidence; {gate.shown(threshold)} is let pass"
    )
    if sums.devices < LEAST_DEVICES and bound > threshold:
        return "hold", f"{said}; so few devices tell of themselves, not of the release"
    if sums.devices < needed:
        return "too few", f"{said}; {needed} devices are needed"
    return ("breach" if bound > threshold else "pass"), said
