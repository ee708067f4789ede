"""Energy of a device, from the first source that the kernel offers: RAPL, hwmon, or a battery.

RAPL counts energy. The other sources report power, which is added up over the time between two
looks. INA chips are hwmon devices. A battery reports the power of the device while it discharges.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edgepack.agent.telemetry.kernel_files import read_number, read_text

LONGEST_S = 60.0
"""Longest time between two looks over which power is added up."""
_RAPL = "class/powercap/*-rapl:*"
_HWMON = "class/hwmon/hwmon*"
_BATTERIES = "class/power_supply/*"
_MICRO = 1e-6
_MOST_W = 2000.0
"""More is an error of a sensor, or a counter that was set back."""


class EnergyMeter:
    """Adds up the energy of a device.

    Args:
        sysfs: Folder of the kernel's files.
        clock: Monotonic clock, seconds.

    Attributes:
        source: `RAPL`, `hwmon` or `battery`; "" without a source.
        power_w: Power over the time between the last two looks, watts; None if not known.
        total_j: Known energy since the start, joules.
    """

    def __init__(self, sysfs: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._sysfs, self._clock = sysfs, clock
        self._seen_at = clock()
        self._counters = self._read_counters()
        self.source = "RAPL" if self._counters else self._read_power()[0]
        self.power_w: float | None = None
        self.total_j = 0.0
        self._energy_j: float | None = None  # The time before the start is not known.

    def look(self) -> None:
        """Add the energy since the last look."""
        now = self._clock()
        elapsed_s, self._seen_at = now - self._seen_at, now
        before, self._counters = self._counters, self._read_counters()
        source, used_j = "RAPL", _used_j(before, self._counters)
        if not self._counters:
            source, power_w = self._read_power()
            used_j = power_w * elapsed_s if elapsed_s <= LONGEST_S else None
        is_known = source == self.source and used_j is not None and used_j <= _MOST_W * elapsed_s
        self.source = source
        if not source or not is_known or used_j is None:
            self._energy_j = self.power_w = None
            return
        self.total_j += used_j
        if elapsed_s > 0:
            self.power_w = used_j / elapsed_s
        if self._energy_j is not None:
            self._energy_j += used_j

    @property
    def energy_j(self) -> float | None:
        """Energy since `begin`, joules; None if a part is not known."""
        return self._energy_j

    def begin(self) -> None:
        """Begin another window."""
        self._energy_j = 0.0 if self.source else None

    def _read_counters(self) -> dict[str, tuple[int, int]]:
        """Return RAPL's counters of processor packages, microjoules, with their greatest values."""
        found: dict[str, tuple[int, int]] = {}
        for zone in self._sysfs.glob(_RAPL):
            if not read_text(zone / "name").startswith("package"):
                continue  # A part of a package, or the whole board once more.
            count = read_number(zone / "energy_uj")
            most = read_number(zone / "max_energy_range_uj")
            if count is not None and most and count <= most:
                found[read_text(zone / "name")] = (count, most)
        return found

    def _read_power(self) -> tuple[str, float]:
        """Return a source and its power, watts; ("", 0) without a source."""
        for source, read in (("hwmon", self._hwmon_w), ("battery", self._battery_w)):
            if powers := list(read()):
                return source, sum(powers)
        return "", 0.0

    def _hwmon_w(self) -> Iterator[float]:
        """Yield the power of each monitor, watts."""
        for chip in sorted(self._sysfs.glob(_HWMON)):
            powers = [read_number(path) for path in chip.glob("power*_input")]
            powers = powers or [read_number(path) for path in chip.glob("power*_average")]
            rails = {} if powers else _rails_w(chip)
            # A rail such as VDD_IN of a Jetson feeds the others.
            whole = [power for name, power in rails.items() if name.endswith("_IN")]
            yield from whole or rails.values()
            yield from (one * _MICRO for one in powers if one is not None and one >= 0)

    def _battery_w(self) -> Iterator[float]:
        """Yield the power of each battery that discharges, watts."""
        for supply in sorted(self._sysfs.glob(_BATTERIES)):
            if (
                read_text(supply / "type") != "Battery"
                or read_text(supply / "status") != "Discharging"
            ):
                continue
            power = read_number(supply / "power_now")
            volts, amperes = (
                read_number(supply / "voltage_now"),
                read_number(supply / "current_now"),
            )
            if power is not None:
                yield abs(power) * _MICRO
            elif volts is not None and amperes is not None:
                yield abs(volts * amperes) * _MICRO * _MICRO


def _used_j(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> float | None:
    """Return the energy between two readings, joules; None if the packages differ."""
    if before.keys() != after.keys():
        return None
    counts = ((count - before[name][0]) % (most + 1) for name, (count, most) in after.items())
    return sum(counts) * _MICRO


def _rails_w(chip: Path) -> dict[str, float]:
    """Return the power of the labelled rails of a monitor of mV and mA, such as INA3221, watts."""
    found = {}
    for current in chip.glob("curr*_input"):
        number = current.name.removeprefix("curr").removesuffix("_input")
        name = read_text(chip / f"in{number}_label")
        volts, amperes = read_number(chip / f"in{number}_input"), read_number(current)
        if name and volts is not None and amperes is not None and volts * amperes >= 0:
            found[name] = volts * amperes * _MICRO
    return found
