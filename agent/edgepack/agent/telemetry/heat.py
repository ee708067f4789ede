"""Signs of a device that slows down for heat, from the kernel's files."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edgepack.agent.telemetry.kernel_files import read_number, read_text

SYSTEM = Path("/sys")
_COUNTERS = "devices/system/cpu/cpu*/thermal_throttle/*_throttle_count"
_ZONES = "class/thermal/thermal_zone*"
_TRIPS = frozenset({"passive", "hot", "critical"})
"""Trip points at which the kernel slows the hardware down, or more."""
_COOLING = "class/thermal/cooling_device*"
_SLOWER = ("thermal-cpufreq", "cpufreq", "thermal-devfreq", "devfreq", "Processor")
"""Beginnings of the types of cooling devices that lower a frequency; others are fans."""
_RASPBERRY_PI = "devices/platform/soc/soc:firmware/get_throttled"
_CAPPED_NOW = 0b1110
"""Bits of the Raspberry Pi's firmware: frequency capped, throttled, soft limit of temperature."""


_LASTING_S = 60.0
"""A sign holds so long, for each model of the device that asks."""


class HeatWatch:
    """Compares the kernel's counters with those of the look before.

    Args:
        system: Folder of the kernel's files.
        clock: Monotonic clock, seconds.

    Attributes:
        throttled_s: Time with a sign of heat so far, seconds, to the next look.
    """

    def __init__(self, system: Path = SYSTEM, clock: Callable[[], float] = time.monotonic) -> None:
        self._system, self._clock = system, clock
        self._counts = dict(self._read_counts())
        self._sign, self._seen_at = "", clock()
        self._looked_at = clock()
        self.throttled_s = 0.0

    def look(self) -> str:
        """Return a sign of heat in the last minute, as a sentence; "" without any."""
        before, self._counts = self._counts, dict(self._read_counts())
        elapsed_s, self._looked_at = self._clock() - self._looked_at, self._clock()
        if sign := next(self._signs(before), ""):
            self._sign, self._seen_at = sign, self._clock()
            self.throttled_s += min(elapsed_s, _LASTING_S)
        return self._sign if self._clock() - self._seen_at < _LASTING_S else ""

    def _signs(self, before: dict[str, int]) -> Iterator[str]:
        for place, count in self._counts.items():
            if (more := count - before.get(place, count)) > 0:
                yield f"{place} counts {more} more throttlings for heat"
        for zone in sorted(self._system.glob(_ZONES)):
            celsius = read_number(zone / "temp")
            for trip in sorted(zone.glob("trip_point_*_temp")):
                kind = read_text(trip.with_name(trip.name.replace("_temp", "_type")))
                limit = read_number(trip)
                if celsius and limit and kind in _TRIPS and celsius >= limit > 0:
                    yield (
                        f"{read_text(zone / 'type') or zone.name} has {celsius / 1000:.0f} °C, "
                        f"its trip point '{kind}' is {limit / 1000:.0f} °C"
                    )
        for device in sorted(self._system.glob(_COOLING)):
            state = read_number(device / "cur_state")
            if read_text(device / "type").startswith(_SLOWER) and state is not None and state > 0:
                yield f"{read_text(device / 'type')} lowers the frequency for heat (state {state})"
        flags = read_number(self._system / _RASPBERRY_PI, base=16)
        if flags is not None and flags & _CAPPED_NOW:
            yield f"the firmware lowers the frequency (get_throttled {flags:#x})"

    def _read_counts(self) -> Iterator[tuple[str, int]]:
        for path in sorted(self._system.glob(_COUNTERS)):
            if (count := read_number(path)) is not None:
                yield f"{path.parts[-3]} {path.name.partition('_')[0]}", count
