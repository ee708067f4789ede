"""Sums of a device's measurements of a release: the input of gates.

Old inferences make room for newer inferences: sums are kept in two halves, and a full half replaces
the previous half.
"""

from collections.abc import Callable, Iterable

import msgspec

from edgepack.fleet.documents.gates import BY_NAME
from edgepack.wire.histogram import empty, merge, percentile
from edgepack.wire.messages import Choice, Histogram, Telemetry

FULL_INFERENCES = 5000
FULL_WINDOWS = 500
"""A half that has so much is full: of one inference a second, each is of 80 minutes or more."""


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

    @property
    def is_full(self) -> bool:
        """True if newer windows start another half."""
        return self.latency.count >= FULL_INFERENCES or self.windows >= FULL_WINDOWS


class ReleaseMeasurements(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of a release on a device."""

    older: Sums = Sums()
    recent: Sums = Sums()

    def plus(self, windows: Iterable[Telemetry]) -> "ReleaseMeasurements":
        """Return the same with windows that came since."""
        older, recent = self.older, self.recent
        for window in windows:
            if recent.is_full:
                older, recent = recent, Sums()
            recent = _add(recent, _sums_of(window))
        return ReleaseMeasurements(older=older, recent=recent)

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
        """Return the measured values by gate; gates with too few measurements are missing."""
        whole = _add(self.older, self.recent)
        found = {name: measure(whole) for name, measure in _MEASURES.items()}
        return {name: value for name, value in found.items() if value is not None}


def measures_of(choice: Choice) -> dict[str, float]:
    """Return the values of gates from a device's choice of a variant."""
    said = {"fallbacks": float(choice.is_fallback)}
    probe = next((one for one in choice.probes if one.variant == choice.chosen), None)
    if probe is not None and probe.task_lost is not None:
        said["golden"] = probe.task_lost
    return said


def _percentile(name: str, percent: float) -> Callable[[Sums], float | None]:
    fewest = BY_NAME[name].fewest

    def measure(sums: Sums) -> float | None:
        return percentile(sums.latency, percent) if sums.latency.count >= fewest else None

    return measure


def _errors(sums: Sums) -> float | None:
    tried = sums.latency.count + sums.failures
    wrong = sums.failures + sums.not_finite
    return wrong / tried if tried >= BY_NAME["errors"].fewest else None


def _shadow(sums: Sums) -> float | None:
    enough = sums.shadow_count >= BY_NAME["shadow"].fewest
    return 1 - sums.shadow_agreed / sums.shadow_count if enough else None


_MEASURES: dict[str, Callable[[Sums], float | None]] = {
    "p95": _percentile("p95", 95),
    "p99": _percentile("p99", 99),
    "errors": _errors,
    "memory": lambda sums: sums.memory_bytes / sums.memories if sums.memories else None,
    "temperature": lambda sums: (
        sums.temperature_c / sums.temperatures if sums.temperatures else None
    ),
    "shadow": _shadow,
    "drift": lambda sums: sums.drift / sums.drifts if sums.drifts else None,
}


def _sums_of(window: Telemetry) -> Sums:
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
    )
