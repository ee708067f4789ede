"""Sums of a device's measurements of a release: the input of gates.

Old inferences make room for newer inferences: sums are kept in two halves, and a full half replaces
the previous half. Gates that compare times, memory and temperatures need values in their order:
each value is of about five minutes, and the values of a day are kept.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from edgepack.decoding import json_decoder
from edgepack.fleet.database.latency import DAY_S
from edgepack.fleet.documents.gates import BY_NAME, TIMED
from edgepack.wire.histogram import empty, merge, percentile
from edgepack.wire.reports import Choice
from edgepack.wire.telemetry import Histogram, Telemetry

FULL_INFERENCES = 5000
FULL_WINDOWS = 500
"""A half that has so much is full: of one inference a second, each is of 80 minutes or more."""


VALUE_S = 300.0
"""Seconds of a value, unless the server's settings say otherwise."""
KEPT_VALUES = 312
"""Values of a release on a device: the hour before a switch, a day after, and an hour of room."""
_LONGEST = 12
"""A value with few inferences or texts grows to this multiple of its length."""
_ALMOST = 0.9
"""Windows end a moment too early or too late."""
_LATEST_S = 30 * DAY_S
"""A device that was offline sends windows so late."""
PAIR, PAIR_BEFORE = 14, 12
"""Values of a pair A/A: ten minutes and the hour before; and of the hour alone."""


class Value(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A device's measurements of a release in about five minutes.

    Attributes:
        start, end: Seconds since the epoch.
        measures: In the order of `TIMED`: logarithm of a ratio's measure; None if not measured.
    """

    start: float
    end: float
    measures: tuple[float | None, ...]

    @property
    def middle(self) -> float:
        """Middle of the value's time, seconds since the epoch."""
        return (self.start + self.end) / 2


class Sums(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Sums of a device's windows.

    Attributes:
        windows: How many.
        latency, failures: Of all inferences.
        memory_bytes, memories: Sum over windows, and number of windows with a value.
        temperature_c, temperatures: Sum of the windows' highest temperatures, and how many
            reported.
        drift, drifts: Sum of greatest differences, and how many windows reported.
        shadow_count, shadow_agreed: Shadow inferences, and the number that agreed.
        not_finite: Inferences with NaN or infinity where the golden outputs have none.
        energy_j, metered: Energy, joules, and the inferences of the windows that reported energy.
        first_tokens: Times to the first token of texts.
    """

    windows: int = 0
    latency: Histogram = msgspec.field(default_factory=empty)
    failures: int = 0
    memory_bytes: int = 0
    memories: int = 0
    temperature_c: float = 0.0
    temperatures: int = 0
    drift: float = 0.0
    drifts: int = 0
    shadow_count: int = 0
    shadow_agreed: int = 0
    not_finite: int = 0
    energy_j: float = 0.0
    metered: int = 0
    first_tokens: Histogram = msgspec.field(default_factory=empty)

    @property
    def is_full(self) -> bool:
        """True if newer windows start another half."""
        return self.latency.count >= FULL_INFERENCES or self.windows >= FULL_WINDOWS


_VALUES = json_decoder(tuple[Value, ...])


class ReleaseMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a release on a device.

    Attributes:
        older, recent: The newest inferences, in two halves.
        packed: Values of the last day, encoded: most messages need none of the values.
        timed_s: Seconds of the values that measured `p95`.
        closed: Values so far, also those that are not kept.
        began: Start of the first window, seconds since the epoch.
        current, since, until: Sums of the next value, and their time, seconds since the epoch.
    """

    older: Sums = Sums()
    recent: Sums = Sums()
    packed: msgspec.Raw = msgspec.Raw(b"[]")
    timed_s: float = 0.0
    closed: int = 0
    began: float = 0.0
    current: Sums = Sums()
    since: float = 0.0
    until: float = 0.0

    def plus(
        self, windows: Iterable[Telemetry], value_s: float = VALUE_S, now: float | None = None
    ) -> "ReleaseMeasurements":
        """Return the same with windows that came since.

        Args:
            windows: Windows of the release on the device.
            value_s: Seconds of a value.
            now: Seconds since the epoch; a window of a clock that was never set counts as of now.
        """
        older, recent, closed = self.older, self.recent, self.closed
        added: list[Value] = []
        began, current, since, until = self.began, self.current, self.since, self.until
        for window in windows:
            if recent.is_full:
                older, recent = recent, Sums()
            sums = sums_of(window)
            recent, current = _add(recent, sums), _add(current, sums)
            end = window.window_start + window.window_s
            late_s = 0.0 if now is None else now - end
            shift = 0.0 if -DAY_S <= late_s <= _LATEST_S else late_s
            is_first = current.windows == 1
            since = window.window_start + shift if is_first else since
            until = end + shift if is_first else max(until, end + shift)
            began = began or since
            lasted_s = until - since
            if lasted_s >= _ALMOST * value_s * (1 if _is_enough(current) else _LONGEST):
                added.append(Value(start=since, end=until, measures=_timed(current)))
                closed += 1
                current = Sums()
        packed, timed_s = self.packed, self.timed_s
        if added:
            values = (*self.values, *added)[-KEPT_VALUES:]
            packed = msgspec.Raw(msgspec.json.encode(values))
            timed_s = math.fsum(
                one.end - one.start for one in values if one.measures[0] is not None
            )
        return ReleaseMeasurements(
            older=older,
            recent=recent,
            packed=packed,
            timed_s=timed_s,
            closed=closed,
            began=began,
            current=current,
            since=since,
            until=until,
        )

    @property
    def values(self) -> tuple[Value, ...]:
        """Values of the last day, the newest last."""
        return _VALUES.decode(self.packed)

    def pair(self, value_s: float) -> tuple[float | None, ...]:
        """Return the newest pair A/A by gate: the last ten minutes less the hour before."""
        newest = self.values[-PAIR:]
        if len(newest) < PAIR or newest[-1].end - newest[0].start > 2 * PAIR * value_s:
            return (None,) * len(TIMED)
        before, now = newest[:PAIR_BEFORE], newest[PAIR_BEFORE:]
        return tuple(
            subtract_optional(*both) for both in zip(typical(now), typical(before), strict=True)
        )

    @property
    def drift(self) -> float | None:
        """Mean of the greatest differences, standard deviations; None if no window reported a
        difference.
        """
        told = self.older.drifts + self.recent.drifts
        return (self.older.drift + self.recent.drift) / told if told else None

    @property
    def shadow(self) -> tuple[int, int]:
        """Shadow inferences, and the number that agreed."""
        both = (self.older, self.recent)
        return sum(s.shadow_count for s in both), sum(s.shadow_agreed for s in both)

    def measures(self) -> dict[str, float]:
        """Return shares of the newest inferences by gate; gates with too few are missing."""
        whole = _add(self.older, self.recent)
        found = {name: measure(whole) for name, measure in _SHARES.items()}
        return {name: value for name, value in found.items() if value is not None}


def measures_of(choice: Choice) -> dict[str, float]:
    """Return the values of gates from a device's choice of a variant."""
    said = {"fallbacks": float(choice.is_fallback)}
    probe = next((one for one in choice.probes if one.variant == choice.chosen), None)
    if probe is not None and probe.task_lost is not None:
        said["golden"] = probe.task_lost
    return said


def _is_enough(sums: Sums) -> bool:
    """Return whether a value can measure inferences, and first tokens where texts are written."""
    texts = sums.first_tokens.count
    return sums.latency.count >= BY_NAME["p95"].fewest and (
        not texts or texts >= BY_NAME["first_token"].fewest
    )


def _percentile(
    name: str, percent: float, of: Callable[[Sums], Histogram] = lambda sums: sums.latency
) -> Callable[[Sums], float | None]:
    fewest = BY_NAME[name].fewest

    def measure(sums: Sums) -> float | None:
        return percentile(of(sums), percent) if of(sums).count >= fewest else None

    return measure


def _errors(sums: Sums) -> float | None:
    tried = sums.latency.count + sums.failures
    wrong = sums.failures + sums.not_finite
    return wrong / tried if tried >= BY_NAME["errors"].fewest else None


def _shadow(sums: Sums) -> float | None:
    enough = sums.shadow_count >= BY_NAME["shadow"].fewest
    return 1 - sums.shadow_agreed / sums.shadow_count if enough else None


_SHARES: dict[str, Callable[[Sums], float | None]] = {"errors": _errors, "shadow": _shadow}
_TIMED: dict[str, Callable[[Sums], float | None]] = {
    "p95": _percentile("p95", 95),
    "p99": _percentile("p99", 99),
    "memory": lambda sums: sums.memory_bytes / sums.memories if sums.memories else None,
    "temperature": lambda sums: (
        sums.temperature_c / sums.temperatures if sums.temperatures else None
    ),
    "drift": lambda sums: sums.drift / sums.drifts if sums.drifts else None,
    "energy": lambda sums: sums.energy_j / sums.metered if sums.metered else None,
    "first_token": _percentile("first_token", 50, lambda sums: sums.first_tokens),
}


def typical(values: Sequence[Value]) -> tuple[float | None, ...]:
    """Return the mean of the middle half of values, by gate of `TIMED`; None without a value.

    The highest of two or three values is left out: a burst is not the device's typical value.
    """
    found: list[float | None] = []
    for place in range(len(TIMED)):
        told = sorted(x for one in values if (x := one.measures[place]) is not None)
        cut = len(told) // 4
        middle = told[cut : len(told) - max(cut, len(told) > 1)]
        found.append(math.fsum(middle) / len(middle) if middle else None)
    return tuple(found)


def subtract_optional(now: float | None, before: float | None) -> float | None:
    """Return the difference; None if a number is missing."""
    return None if now is None or before is None else now - before


def _timed(sums: Sums) -> tuple[float | None, ...]:
    return tuple(
        None if (value := _TIMED[name](sums)) is None else round(scaled(name, value), 5)
        for name in TIMED
    )


def scaled(name: str, value: float) -> float:
    """Return a gate's measure on its scale: the logarithm of a ratio's."""
    return math.log(max(value, 1e-12)) if BY_NAME[name].comparison == "ratio" else value


def sums_of(window: Telemetry) -> Sums:
    has_temperature, has_drift = window.temperature_c is not None, window.drift is not None
    return Sums(
        windows=1,
        latency=window.latency,
        failures=window.failures,
        memory_bytes=window.memory_bytes or 0,
        memories=int(bool(window.memory_bytes)),
        temperature_c=window.temperature_c or 0.0,
        temperatures=int(has_temperature),
        drift=window.drift or 0.0,
        drifts=int(has_drift),
        shadow_count=window.shadow_count,
        shadow_agreed=min(window.shadow_agreed, window.shadow_count),
        not_finite=window.not_finite,
        energy_j=window.energy_j or 0.0,
        metered=window.metered,
        first_tokens=window.first_tokens or empty(),
    )


def _add(one: Sums, other: Sums) -> Sums:
    if not one.windows or not other.windows:
        return one if one.windows else other
    return Sums(
        windows=one.windows + other.windows,
        latency=merge((one.latency, other.latency)),
        failures=one.failures + other.failures,
        memory_bytes=one.memory_bytes + other.memory_bytes,
        memories=one.memories + other.memories,
        temperature_c=one.temperature_c + other.temperature_c,
        temperatures=one.temperatures + other.temperatures,
        drift=one.drift + other.drift,
        drifts=one.drifts + other.drifts,
        shadow_count=one.shadow_count + other.shadow_count,
        shadow_agreed=one.shadow_agreed + other.shadow_agreed,
        not_finite=one.not_finite + other.not_finite,
        energy_j=one.energy_j + other.energy_j,
        metered=one.metered + other.metered,
        first_tokens=merge((one.first_tokens, other.first_tokens)),
    )
