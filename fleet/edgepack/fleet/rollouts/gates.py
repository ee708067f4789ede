"""Gates of a rollout: the bound of each gate over devices, and the results.

A gate is evaluated for each hardware class by itself, over the devices of all waves so far. Each
gate has a single method, see `edgepack.fleet.documents.gates` and `statistics.py`. The error
probability of 2.5 % is shared by all gates, classes and looks of a rollout.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from edgepack.fleet.database.changes import Changes
from edgepack.fleet.database.measurements import (
    AWAITED,
    COMMITTED,
    LOOKS,
    ClassCounts,
    look_name,
)
from edgepack.fleet.database.measures import scaled
from edgepack.fleet.documents.gates import BY_NAME, GATES, Found, Gate, GateVerdict, GateView
from edgepack.fleet.rollouts.statistics import (
    ALPHA,
    LEAST_DEVICES,
    NO_RESIDUALS,
    Residuals,
    lower_bet,
    lower_mean,
    lower_share,
    mean_and_residuals,
)
from edgepack.text import counted

_NEED_INFERENCES = ("p95", "p99", "errors")
"""Gates that need inferences of applications; without these gates no wave waits for evidence."""
WAVE_END = len(LOOKS)
"""Index of the look at the end of a wave."""
_OF_LOOK = (2 / 12, 1 / 12, 1 / 12, 1 / 12, 1 / 12, 6 / 12)
"""Share of a wave's error probability by look, the end of the wave last. The looks of a wave see
the same devices, so a single look with most of the probability finds more than equal looks."""
_FIRST_WAVE = 0.25
"""Error probability of the first wave relative to each later wave: the bound of the fewest devices
rests on the assumed spread."""

STOPS: frozenset[GateVerdict] = frozenset({"breach", "hold"})
"""Verdicts that stop a rollout, or a hardware class of it."""


Look = tuple[int, int]
"""Index of the wave, and of the look in the wave."""


class Plan(NamedTuple):
    """Plan of evaluation: thresholds and error probabilities of a rollout's gates.

    Attributes:
        thresholds: By gate, Threshold; None switches a gate off, a missing gate has its default.
        accepted: Breaches that a person accepted by resuming, as keys of `key` and `hold_key`, and
            waves that may begin without evidence, as keys of `evidence_key`.
        needs_evidence: Whether a wave that measured too little holds the rollout.
        items: The answers that the release's tasks count: `boxes`.
        classes: Number of hardware classes.
        waves: Number of waves with looks.
    """

    thresholds: Mapping[str, float | None]
    accepted: frozenset[str] = frozenset()
    needs_evidence: bool = True
    items: str = "answers"
    classes: int = 1
    waves: int = 1

    def threshold(self, gate: Gate) -> float | None:
        """Return the threshold of a gate; None if the gate is off."""
        is_on = gate.is_default and gate.of_items in self.items
        return self.thresholds.get(gate.name, gate.threshold if is_on else None)

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Gates that are on."""
        return tuple(gate for gate in GATES if self.threshold(gate) is not None)

    def alpha(self, weight: float = 1.0) -> float:
        """Return the error probability of a gate, by its weight, in a class.

        The gate `failures` is a further gate.
        """
        weights = sum(gate.weight for gate in self.gates) + 1
        return ALPHA * weight / (weights * max(1, self.classes))

    def share(self, due: Collection[Look]) -> float:
        """Return the share of a gate's error probability that looks may spend, taken together."""
        found = sum(_OF_LOOK[look] * (1.0 if wave else _FIRST_WAVE) for wave, look in due)
        return found / (max(1, self.waves) - 1 + _FIRST_WAVE)


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


def missing_evidence(plan: Plan, counts: ClassCounts, wave: int, look_s: float) -> str:
    """Return the missing measurements of the waves so far, a sentence; "" for none.

    A hardware class measured enough if 3 of its devices measured until the first look, or all
    devices of a smaller class. Devices that ran no release of the model before have nothing to
    compare with and do not count.

    Args:
        plan: How to judge.
        counts: Devices that measured.
        wave: Index of the current wave.
        look_s: Seconds of the first look.
    """
    is_on = any(gate.name in _NEED_INFERENCES for gate in plan.gates)
    if not is_on or not plan.needs_evidence or evidence_key(wave) in plan.accepted:
        return ""
    lacking = []
    for name in sorted(counts):
        measured, comparable = (_total(counts, name, wave, of) for of in (look_name(0), COMMITTED))
        if measured < min(LEAST_DEVICES, comparable):
            lacking.append(f"{measured} of {counted(comparable, 'device')} of {name}")
    if not lacking:
        return ""
    return (
        f"too few measured p95: {', '.join(lacking)} (a device counts after {look_s:g} s of this "
        f"release and of the previous release, with {BY_NAME['p95'].fewest} inferences a value)"
    )


def awaited(counts: ClassCounts, wave: int) -> int:
    """Return devices of the waves so far with measurements before, but not yet now."""
    return sum(_total(counts, name, wave, AWAITED) for name in counts)


def _total(counts: ClassCounts, hardware_class: str, wave: int, name: str) -> int:
    return sum(one.get(name, 0) for one in counts[hardware_class][: wave + 1])


def find(
    gate: Gate,
    changes: Changes,
    plan: Plan,
    noise: float,
    share: float,
    others: Residuals = NO_RESIDUALS,
) -> Found:
    """Return the mean change over devices, and its lower bound by the gate's method.

    1 or 2 devices are evidence about themselves: each gate then assumes the spread.

    Args:
        gate: The gate.
        changes: Changes of the devices.
        plan: How to judge.
        noise: Standard deviation of a device's change without a cause.
        share: Share of the error probability that a mean may spend, see `Plan.share`.
        others: Residuals of the gate in other hardware classes.
    """
    numbers = changes.numbers
    if not numbers:
        return Found(unbased=changes.unbased)
    alpha, squares = plan.alpha(gate.weight), 0.0
    if gate.method == "mean" or len(numbers) < LEAST_DEVICES:
        threshold = plan.threshold(gate)
        limit = scaled(gate.name, gate.threshold if threshold is None else threshold)
        if len(numbers) >= LEAST_DEVICES:
            spread = math.hypot(noise, gate.effect)
            squares = mean_and_residuals(numbers, limit, spread)[1].squares
        bound = lower_mean(
            numbers,
            limit,
            noise=noise,
            effect=gate.effect,
            controls=changes.controls or 0,
            alpha=alpha * share,
            common=changes.common,
            others=others,
        )
    elif gate.method == "bet":
        bound = lower_bet([min(1.0, max(0.0, number)) for number in numbers], alpha)
    else:
        bound = lower_share(sum(number > 0 for number in numbers), len(numbers), alpha)
    return Found(
        devices=len(numbers),
        unbased=changes.unbased,
        value=math.fsum(numbers) / len(numbers),
        bound=bound,
        before=math.fsum(changes.before) / len(numbers),
        controls=changes.controls,
        squares=squares,
    )


def residuals_of(found: Iterable[Found]) -> Residuals:
    """Return the residuals of a gate over hardware classes with 3 devices or more."""
    known = [one for one in found if one.devices >= LEAST_DEVICES]
    return Residuals(sum(one.squares for one in known), sum(one.devices - 1 for one in known))


def judge(
    plan: Plan, found: Mapping[str, Mapping[str, Found]], settled: Collection[str]
) -> tuple[GateView, ...]:
    """Return the result of each gate for each hardware class with measurements.

    Args:
        plan: How to judge.
        found: Changes by hardware class and gate.
        settled: Classes with complete measurements: 1 or 2 devices that measured a breach hold the
            rollout.

    Returns:
        By gate and class; a gate without any class appears once, without a class.
    """
    views: list[GateView] = []
    for gate in GATES:
        told = {
            name: one
            for name, gates in sorted(found.items())
            if (one := gates.get(gate.name)) is not None and (one.devices or one.unbased)
        }
        for name, one in told.items() or [("", Found())]:
            views.append(_judge_one(gate, name, one, plan, is_settled=name in settled))
    return tuple(views)


def _judge_one(
    gate: Gate, hardware_class: str, found: Found, plan: Plan, *, is_settled: bool
) -> GateView:
    value = bound = before = now = None
    if found.devices:
        value, bound, before = found.value, found.bound, found.before
        now = before + value
        if gate.comparison == "ratio":
            value, bound, before, now = map(math.exp, (value, bound, before, now))
        elif gate.comparison == "share":
            before = None
    verdict, because = _verdict(gate, found, plan, value, bound, is_settled=is_settled)
    seen = hold_key if verdict == "hold" else key
    if verdict in STOPS and seen(gate.name, hardware_class) in plan.accepted:
        verdict, because = "accepted", f"{because}; a person resumed after it"
    return GateView(
        name=gate.name,
        hardware_class=hardware_class,
        threshold=plan.threshold(gate),
        comparison=gate.comparison,
        unit=gate.unit,
        devices=found.devices,
        value=value,
        bound=bound,
        before=before,
        now=now,
        verdict=verdict,
        because=because,
        controls=found.controls,
    )


def _verdict(
    gate: Gate,
    found: Found,
    plan: Plan,
    value: float | None,
    bound: float | None,
    *,
    is_settled: bool,
) -> tuple[GateVerdict, str]:
    threshold = plan.threshold(gate)
    if threshold is None:
        return "off", "switched off"
    if value is None and found.unbased:
        told = counted(found.unbased, "device")
        return "no baseline", f"{told} measured it, and nothing is known of the release before"
    if value is None or bound is None:
        return "no evidence", "no device measured it"
    against = {None: "", 0: " without controls"}.get(
        found.controls, f" against {counted(found.controls or 0, 'control')}"
    )
    said = (
        f"{gate.worded(value, plan.items)} over {counted(found.devices, 'device')}{against}, "
        f"{gate.shown(bound)} or more with 97.5 % confidence; {gate.shown(threshold)} is let pass"
    )
    if found.devices >= LEAST_DEVICES:
        return ("breach" if bound > threshold else "pass"), said
    if bound > threshold and is_settled:
        return "hold", f"{said}; so few devices tell of themselves, not of the release"
    return "too few", f"{said}; {LEAST_DEVICES} devices are needed"
