"""Readings of a device besides latency: memory of a process and of the device, temperatures."""

import os
import re
from itertools import islice
from pathlib import Path

from edgepack.agent.telemetry.kernel_files import read_number

SYSFS = Path("/sys")
MAX_SENSORS = 64
_STATM = Path("/proc/self/statm")
_MEMINFO = Path("/proc/meminfo")
_COLDEST_C, _HOTTEST_C = -60.0, 200.0
"""A sensor that tells less or more is broken, or not there."""


def memory_bytes(statm: Path = _STATM) -> int:
    """Return the present memory of this process, bytes; 0 if the system does not report memory."""
    try:
        pages = int(statm.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_bytes(meminfo: Path = _MEMINFO) -> int | None:
    """Return the memory that a new process can have without swapping; None if not known."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.M)
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None


def read_temperatures(sysfs: Path = SYSFS) -> dict[str, float]:
    """Return the temperature of each sensor, degrees Celsius, by its name below `/sys`."""
    found: dict[str, float] = {}
    for path in islice(sysfs.glob("class/thermal/thermal_zone*/temp"), MAX_SENSORS):
        number = read_number(path)
        if number is not None and _COLDEST_C <= number / 1000 <= _HOTTEST_C:
            found[path.parent.name] = number / 1000
    return found


def highest_temperature_c(sysfs: Path = SYSFS) -> float | None:
    """Return the highest temperature that a sensor reports; None if no sensor reports any."""
    return max(read_temperatures(sysfs).values(), default=None)
