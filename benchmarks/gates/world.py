"""A simulated fleet: the logarithm of p95 of each device, every five minutes.

The world is assumed, not measured: each device has its level, correlated noise, bursts and a day of
its own; all devices share a day. The release changes each device a little differently, and a few
devices much more.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgepack.fleet.database.changes import APART, Changes, common_share
from edgepack.fleet.database.measurements import LOOKS
from edgepack.fleet.database.measures import KEPT_VALUES, PAIR_BEFORE, scaled
from edgepack.fleet.documents.gates import BY_NAME, Found, Gate
from edgepack.fleet.rollouts.gates import WAVE_END, Look, Plan, find, residuals_of
from edgepack.fleet.rollouts.statistics import LEAST_DEVICES, bet_evidence

VALUE_MIN = 5
DAY = 24 * 60 // VALUE_MIN
"""Values of a day."""
FIRST_LOOK = 2
"""Values until the first look."""
Floats = NDArray[np.float64]


class World(msgspec.Struct, frozen=True, kw_only=True):
    """A world, in logarithms of the measurement.

    Attributes:
        noise: Standard deviation of a value.
        correlation_min: Time over which noise is correlated, minutes.
        bursts: Share of values with a burst of .1 to .7.
        own_day, common_day: Greatest amplitude of a device's own day, and amplitude of the day that
            all devices share.
        effect: Standard deviation of the release's effect between devices.
        odd, odd_effect: Share of odd devices, and the standard deviation of the effect on these.
        odd_more: Further mean effect on odd devices.
        heat: Step of all devices at the first switch.
        weather: Standard deviation of a level that all devices share and that changes each day.
        scale: Factor of all of these, the effects included: 1 for p95.
    """

    noise: float = 0.06
    correlation_min: float = 50.0
    bursts: float = 0.05
    own_day: float = 0.06
    common_day: float = 0.05
    effect: float = 0.04
    odd: float = 0.05
    odd_effect: float = 0.3
    odd_more: float = 0.0
    heat: float = 0.0
    weather: float = 0.0
    scale: float = 1.0

    def draw(self, rng: np.random.Generator, devices: int, values: int) -> Floats:
        """Return values of devices without a release: float64 (devices, values)."""
        keep = math.exp(-VALUE_MIN / self.correlation_min)
        shocks = rng.normal(0.0, math.sqrt(1 - keep**2), (values, devices))
        fade = keep ** np.arange(1.0, values + 1)[:, None]
        correlated = fade * (rng.normal(0.0, 1.0, devices) + np.cumsum(shocks / fade, axis=0))
        drawn = self.noise * correlated.T
        drawn += (rng.random(drawn.shape) < self.bursts) * rng.uniform(0.1, 0.7, drawn.shape)
        turns = 2 * math.pi * np.arange(values) / DAY
        phases = rng.uniform(0, 2 * math.pi, (devices, 1))
        drawn += rng.uniform(0, self.own_day, (devices, 1)) * np.sin(turns + phases)
        drawn += self.common_day * np.sin(turns + rng.uniform(0, 2 * math.pi))
        levels = rng.normal(0.0, self.weather, values // DAY + 2)
        drawn += np.interp(np.arange(values) / DAY, np.arange(len(levels)), levels)
        return self.scale * drawn

    def effects(self, rng: np.random.Generator, devices: int, change: float) -> Floats:
        """Return the effect of a release on each device."""
        is_odd = rng.random(devices) < self.odd
        spread = np.where(is_odd, self.odd_effect, self.effect)
        effects: Floats = change + self.scale * rng.normal(self.odd_more * is_odd, spread)
        return effects


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout to simulate.

    Attributes:
        waves: Devices with the release after each wave.
        controls: Devices that are held back.
        wave_values: Values of a wave.
        gate: Name of the gate.
        classes, planned_waves: Hardware classes and waves that share the error probability.
        noise: Noise that the gate assumes; None for its default.
    """

    waves: tuple[int, ...] = (3, 6, 12, 25, 50)
    controls: int = 10
    wave_values: int = 72
    gate: str = "p95"
    classes: int = 3
    planned_waves: int = 5
    noise: float | None = None

    @property
    def plan(self) -> Plan:
        """The plan of evaluation."""
        return Plan({}, classes=self.classes, waves=self.planned_waves)


def run(
    world: World, trial: Trial, change: float, rng: np.random.Generator
) -> tuple[int | None, ...]:
    """Simulate a rollout on all hardware classes to the end.

    Returns:
        By class, the number of devices with the release at the breach, from 3 devices on; None
        without a breach.
    """
    gate, plan = BY_NAME[trial.gate], trial.plan
    noise = gate.noise if trial.noise is None else trial.noise
    devices = trial.waves[-1] + trial.controls
    start = PAIR_BEFORE
    total = start + trial.wave_values * len(trial.waves) + 1
    stops: list[int | None] = [None] * trial.classes
    last = [Found()] * trial.classes
    drawn = []
    for _ in stops:
        values = world.draw(rng, devices, total)
        values[:, start:] += world.heat
        drawn.append((values, world.effects(rng, devices, change)))
    switches = np.full(devices, total)
    before = 0
    for wave, reach in enumerate(trial.waves):
        began = start + wave * trial.wave_values
        switches[before:reach] = began
        for values, effects in drawn:
            values[before:reach, began:] += effects[before:reach, None]
        before = reach
        for now, due in looks(trial, wave, start).items():
            for number, (values, _) in enumerate(drawn):
                changes = compare(values, switches, now, trial.controls)
                others = residuals_of([*last[:number], *last[number + 1 :]])
                found = find(gate, changes, plan, noise, plan.share(due), others)
                last[number] = found
                if found.devices and found.bound > _limit(gate, plan):
                    stops[number] = stops[number] or reach
        if all(stops):
            break
    return tuple(stops)


def run_shares(
    trial: Trial, rng: np.random.Generator, before: Floats, now: Floats, inferences: int
) -> int | None:
    """Simulate a rollout whose gate counts inferences (`errors`, `shadow`) or devices.

    Args:
        trial: The rollout.
        rng: Source of randomness.
        before, now: True share of each device, on the previous and on the new release.
        inferences: Inferences of a device until it counts, on each release; 1 counts devices.

    Returns:
        The number of devices with a number at the breach; None without a breach. The gate is
        evaluated after each device, and again as devices go on.
    """
    gate, plan = BY_NAME[trial.gate], trial.plan
    old = rng.binomial(inferences, before) / inferences if inferences > 1 else 0.0 * before
    totals = np.zeros(len(now))
    for rounds in range(1, 4 if inferences > 1 else 2):
        totals += rng.binomial(inferences, now)
        numbers = totals / (rounds * inferences) - old
        for count in range(3 if rounds == 1 else len(now), len(now) + 1):
            changes = Changes(tuple(map(float, numbers[:count])), (0.0,) * count)
            if is_breach(gate, plan, changes):
                return count
    return None


def looks(trial: Trial, wave: int, start: int) -> Mapping[int, Sequence[Look]]:
    """Return the looks that are due during a wave, by values from the start of the simulation."""
    began, end = (start + trial.wave_values * number for number in (wave, wave + 1))
    due: dict[int, list[Look]] = {end: [(wave, WAVE_END)]}
    for earlier in range(wave + 1):
        for look, multiple in enumerate(LOOKS):
            now = start + trial.wave_values * earlier + FIRST_LOOK * multiple
            if began < now <= end:
                due.setdefault(now, []).append((earlier, look))
    return dict(sorted(due.items()))


def is_breach(gate: Gate, plan: Plan, changes: Changes) -> bool:
    """Return True if a gate of shares is breached, by the code of the gates.

    The bound of bets is above the threshold where the evidence against the threshold suffices: the
    evidence alone takes a fortieth of the time.
    """
    if gate.method == "bet" and len(changes.numbers) >= LEAST_DEVICES:
        shares = [min(1.0, max(0.0, number)) for number in changes.numbers]
        return bet_evidence(shares, _limit(gate, plan)) >= -math.log(plan.alpha(gate.weight))
    found = find(gate, changes, plan, gate.noise, plan.share([(0, 0)]))
    return found.devices > 0 and found.bound > _limit(gate, plan)


def _limit(gate: Gate, plan: Plan) -> float:
    return scaled(gate.name, plan.threshold(gate) or gate.threshold)


def compare(values: Floats, switches: NDArray[np.int64], now: int, controls: int) -> Changes:
    """Return the changes of devices that switched, corrected for devices that did not switch.

    Args:
        values: float64 (devices, values).
        switches: Value of each device's switch.
        now: Values so far.
        controls: 0 for no correction.
    """
    numbers: list[float] = []
    when: list[float] = []
    waits = (switches > now) & (controls > 0)
    count = int(waits.sum())
    for switch in sorted({int(one) for one in switches[switches < now]}):
        if now - switch + PAIR_BEFORE > KEPT_VALUES:
            continue  # the controls' hour before is not kept any longer
        until = min(now, switch + DAY)
        told = np.concatenate((values[waits], values[switches == switch]))
        found = typical(told[:, switch:until]) - typical(told[:, switch - PAIR_BEFORE : switch])
        common = math.fsum(found[:count]) / count if count else 0.0
        numbers += (found[count:] - common).tolist()
        when += [switch] * (len(found) - count)
    kept = common_share(when, APART * PAIR_BEFORE)
    return Changes(tuple(numbers), (0.0,) * len(numbers), 0, count, kept)


def typical(values: Floats) -> Floats:
    """Return the typical value of each row, as `measures.typical` does."""
    count = values.shape[1]
    cut = count // 4
    ordered = np.sort(values, axis=1)[:, cut : count - max(cut, count > 1)]
    mean: Floats = ordered.mean(axis=1)
    return mean
