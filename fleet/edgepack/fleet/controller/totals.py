"""Inferences that the devices of a fleet reported, summed up since the controller started.

A series is a release on a provider in a hardware class, never a device. Devices state provider and
class, so the number of series has a bound, and so has the number that a device may begin: all
beyond is summed up in one series, and no inference is lost.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from edgepack.fleet.database.latency import Added
from edgepack.metrics.sums import ERRORS, ReleaseSums, sum_families
from edgepack.metrics.table import CLASS, OVERFLOW, RELEASE, STATISTIC, Family, Point, family
from edgepack.text import printable
from edgepack.wire.telemetry import Telemetry

MAX_SERIES = 1000
MAX_BEGUN = 16
"""Series that one device may begin."""
PERIOD_S = 600.0
"""Gauges cover the present period and the period before."""
_MAX_NAME = 120
_GAUGES = {
    "edgepack.inference.drift": "drift",
    "edgepack.model.memory.usage": "memory_bytes",
    "hw.temperature": "temperature_c",
}
_OVERFLOW = ((OVERFLOW, "true"),)

_Key = tuple[tuple[str, str], ...]


class _Seen(NamedTuple):
    """Values of a gauge in a period: sum, number and greatest."""

    total: float = 0.0
    number: int = 0
    most: float = float("-inf")

    def plus(self, other: "_Seen") -> "_Seen":
        return _Seen(
            self.total + other.total, self.number + other.number, max(self.most, other.most)
        )


class FleetTotals:
    """Sums of windows by series; safe to use from several threads.

    Args:
        started_at: Start of the sums, seconds since the epoch.
    """

    def __init__(self, started_at: float) -> None:
        self._lock = threading.Lock()
        self._sums: dict[_Key, ReleaseSums] = {}
        self._nothing = ReleaseSums(since=started_at)
        self._begun: Counter[str] = Counter()
        self._period = 0
        self._gauges: tuple[dict[tuple[_Key, str], _Seen], ...] = ({}, {})
        self._dropped = 0

    def add(self, added: Sequence[Added], dropped: int, now: float) -> None:
        """Add windows of devices.

        Args:
            added: The windows.
            dropped: Inferences of windows that were not taken.
            now: Seconds since the epoch.
        """
        with self._lock:
            self._dropped += dropped
            self._turn(now)
            for one in added:
                key = self._key(one)
                self._sums[key] = self._sums.get(key, self._nothing).plus(one.window)
                self._note(key, one.window)

    @property
    def inferences(self) -> dict[str, int]:
        """Inferences by outcome: `finished`, and those of `ERRORS`."""
        return {name: self._all(name) for name in ("finished", *ERRORS)}

    @property
    def energy(self) -> dict[str, int]:
        """Energy in `millijoules`, and the `inferences` that the energy stands for."""
        return {
            "millijoules": round(1000 * self._all("energy_j")),
            "inferences": self._all("metered"),
        }

    def families(self) -> Iterator[Family]:
        """Yield the metrics of all series."""
        with self._lock:
            sums = [(dict(key), one) for key, one in self._sums.items()]
            before, present = self._gauges
            gauges = {
                key: present.get(key, _Seen()).plus(before.get(key, _Seen()))
                for key in before.keys() | present.keys()
            }
            dropped = self._dropped
        yield from sum_families(sums)
        for name, field in _GAUGES.items():
            yield family(name, _points(gauges, field))
        yield family("edgepack.telemetry.dropped", dropped)

    def _all(self, name: str) -> int:
        with self._lock:
            found: int = sum(getattr(one, name) for one in self._sums.values())
        return found

    def _key(self, one: Added) -> _Key:
        kind, window = one.kind, one.window
        values = (one.model, one.version, window.digest[:12], window.provider)
        words = [printable(word)[:_MAX_NAME] for word in (*values, kind.hardware_class)]
        key = tuple(zip((*RELEASE, *CLASS), [*words, str(kind.is_simulator).lower()], strict=True))
        if key in self._sums:
            return key
        if len(self._sums) >= MAX_SERIES or self._begun[one.device] >= MAX_BEGUN:
            return _OVERFLOW
        self._begun[one.device] += 1
        return key

    def _turn(self, now: float) -> None:
        """Begin another period of the gauges if the present period is over."""
        period = int(now // PERIOD_S)
        if period != self._period:
            is_next = period == self._period + 1
            self._gauges = (self._gauges[1] if is_next else {}, {})
            self._period = period

    def _note(self, key: _Key, window: Telemetry) -> None:
        present = self._gauges[1]
        for field in _GAUGES.values():
            value = getattr(window, field)
            if value is not None:
                seen = present.get((key, field), _Seen())
                present[key, field] = seen.plus(_Seen(value, 1, value))


def _points(gauges: Mapping[tuple[_Key, str], _Seen], wanted: str) -> Iterable[Point]:
    for (key, field), seen in sorted(gauges.items()):
        if field == wanted:
            for statistic, value in (("mean", seen.total / seen.number), ("max", seen.most)):
                yield Point({**dict(key), STATISTIC: statistic}, value)
