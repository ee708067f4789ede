"""Checks of the machine: clock, disk, memory."""

import ctypes
import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from edgepack.agent.doctor.findings import Device, Finding, ok, warn, wrong
from edgepack.agent.state.disk import read_disk_state
from edgepack.agent.telemetry.readings import available_bytes

_TIMEX_BYTES = 512
_TIMEX = "@i4li"
"""Begin of `struct timex` of adjtimex(2): modes, offset, frequency, errors, status."""
_UNSYNCHRONIZED = 0x40
_CLOCK_SLACK_S = 120.0
_TIGHT_SHARE = 0.05
"""Share of memory below which the kernel may kill processes."""
_WORN = 9
"""Of eMMC's `life_time`: 9 stands for 80 to 90 % of the specified writes."""
_MB = 1e6


def check_clock(device: Device) -> Iterator[Finding]:
    """Compare the clock with times that this device wrote, and look for a time source."""
    shown = _time(device.now)
    newest = max(_known_times(device), default=0.0)
    if device.now < newest - _CLOCK_SLACK_S:
        yield wrong(
            "clock",
            f"{shown}, which is before {_time(newest)}, a time that this device wrote",
            "set the clock: timedatectl set-ntp true",
        )
        return
    error_us = _clock_error_us()
    if error_us is None:
        yield warn(
            "clock",
            f"{shown}, and no time source corrects the clock",
            "timedatectl set-ntp true, or another NTP client; certificates depend on the clock",
        )
    else:
        yield ok("clock", f"{shown}, corrected by a time source to {error_us / 1e3:.0f} ms")


def _known_times(device: Device) -> Iterator[float]:
    if device.status is not None:
        for model in device.status.models.values():
            if model.active is not None:
                yield model.active.since
        if device.status.broker is not None:
            yield device.status.broker.since


def _clock_error_us() -> int | None:
    """Return the kernel's bound of the clock's error, microseconds; None if nothing sets it."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        if ctypes.CDLL(None).adjtimex(buffer) < 0:
            return None
    except (OSError, AttributeError):
        return None
    _, _, _, most_us, _, status = struct.unpack_from(_TIMEX, buffer.raw)
    return None if status & _UNSYNCHRONIZED else int(most_us)


def check_disk(device: Device) -> Iterator[Finding]:
    """Compare free space with the reserve, and read the counters of the disk's health."""
    place = _existing(Path(device.state_dir))
    found = os.statvfs(place)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    share = f"{free / _MB:.0f} of {total / _MB:.0f} MB are free on the disk of {place}"
    reserve = device.config.limits.disk_reserve_bytes if device.config else 0
    if fault := read_disk_state(place):
        yield wrong("disk", f"the disk of {place} is {fault}", "free space or mount it writable")
    elif free < reserve:
        yield wrong(
            "disk",
            f"{share}, less than the reserve of {reserve / _MB:.0f} MB: updates are rejected",
            "free disk space, or lower limits.disk_reserve_bytes",
        )
    else:
        yield ok("disk", share)
    yield from check_disk_health(place)


def check_disk_health(place: Path, root: Path = Path("/")) -> Iterator[Finding]:
    """Read the errors that the file system counted, and the wear of an eMMC.

    Args:
        place: A folder on the disk.
        root: Root of `sys`.
    """
    number = place.stat().st_dev
    block = root / "sys/dev/block" / f"{os.major(number)}:{os.minor(number)}"
    name = block.resolve().name
    errors = _number(root / "sys/fs/ext4" / name / "errors_count")
    if errors:
        yield wrong(
            "disk",
            f"the file system of {place} has counted {errors} errors",
            f"back up the state folder, unmount, and run fsck /dev/{name}",
        )
    for disk in (block.resolve(), block.resolve().parent):
        life = _text(disk / "device/life_time").split()
        worn = max(
            (int(one, 16) for one in life if re.fullmatch("0x[0-9a-fA-F]{1,2}", one)), default=0
        )
        if worn >= _WORN:
            yield warn(
                "disk",
                f"the eMMC {disk.name} has used {10 * (worn - 1)} % of its writes, at least",
                "replace the storage; raise telemetry.interval_s to write less",
            )
        elif worn:
            yield ok("disk", f"the eMMC {disk.name} has used at most {10 * worn} % of its writes")


def check_memory(device: Device) -> Iterator[Finding]:
    """Compare available memory with the whole, and look for processes that the kernel killed."""
    text = _text(Path("/proc/meminfo"))
    found = re.search(r"^MemTotal:\s*(\d+) kB", text, re.M)
    total, available = int(found[1]) * 1024 if found else 0, available_bytes()
    if not total or available is None:
        yield warn("memory", "its size is unknown: /proc/meminfo cannot be read", "mount /proc")
        return
    fact = f"{available / _MB:.0f} of {total / _MB:.0f} MB are available"
    if available < _TIGHT_SHARE * total:
        yield warn("memory", fact, "stop other programs, or serve fewer models")
    else:
        yield ok("memory", fact)
    limit = device.config.limits.memory_bytes if device.config else 0
    if limit > total:
        yield warn(
            "memory",
            f"limits.memory_bytes allows {limit / _MB:.0f} MB, more than the device has",
            "lower limits.memory_bytes",
        )


def _existing(path: Path) -> Path:
    """Return a path or the nearest folder above that exists."""
    return next((one for one in (path, *path.parents) if one.exists()), Path("/"))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isascii() and text.isdecimal() else 0


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))
