"""Bandwidth: a limit in bytes per second, maybe by the hour, as text and as numbers."""

import re
from datetime import datetime, time

import msgspec

from edgepack.errors import EdgepackError

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(|B|kB|KB|MB|GB)(?:/s)?")
_UNITS = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_HOURS = re.compile(r"([0-9]{2}):([0-9]{2})-([0-9]{2}):([0-9]{2})")
_DAY_MINUTES = 24 * 60
EXAMPLE = "20MB/s, or by hour: 08:00-18:00=2MB/s,50MB/s"


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A rate in some hours of the day.

    Attributes:
        start, end: Minutes of the day; the stretch continues past midnight if `end` is not greater.
        bytes_per_s: 0 is nothing at all.
    """

    start: int
    end: int
    bytes_per_s: float

    def holds(self, minute: int) -> bool:
        """Return True if a minute of the day is in the stretch."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """Limit in bytes per second, by the hour of this machine's clock.

    Attributes:
        stretches: Hours with a rate of their own; the first that holds counts.
        bytes_per_s: Rate in all other hours; None means no limit.
    """

    stretches: tuple[Stretch, ...] = ()
    bytes_per_s: float | None = None

    def at(self, local: time) -> float | None:
        """Return bytes a second at a time of the day; None means no limit, 0 nothing at all."""
        minute = local.hour * 60 + local.minute
        for stretch in self.stretches:
            if stretch.holds(minute):
                return stretch.bytes_per_s
        return self.bytes_per_s

    def now(self) -> float | None:
        """Return the same for now, by this machine's clock and zone."""
        return self.at(datetime.now().astimezone().time()) if self.stretches else self.bytes_per_s


UNLIMITED = Bandwidth()


def parse_bandwidth(text: str) -> Bandwidth:
    """Read a written limit: a rate, or hours with rates, separated by commas.

    Args:
        text: For example `20MB/s` or `08:00-18:00=2MB/s,50MB/s`; "" means no limit. Units are
            powers of 1,000. A rate without hours is the rate of all other hours.

    Raises:
        EdgepackError: The text is neither.
    """
    stretches: list[Stretch] = []
    rest: float | None = None
    for part in filter(None, map(str.strip, text.split(","))):
        hours, is_stretch, rate = part.rpartition("=")
        bytes_per_s = _rate(rate, part)
        if is_stretch:
            start, end = _hours(hours.strip(), part)
            stretches.append(Stretch(start=start, end=end, bytes_per_s=bytes_per_s))
        elif rest is not None:
            raise _refused(part, "two rates are without hours")
        else:
            rest = bytes_per_s
    return Bandwidth(stretches=tuple(stretches), bytes_per_s=rest)


def _rate(text: str, part: str) -> float:
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise _refused(part, "no rate, such as 500kB/s, 20MB/s or 0")
    return float(found[1]) * _UNITS[found[2]]


def _hours(text: str, part: str) -> tuple[int, int]:
    found = _HOURS.fullmatch(text)
    if found is None:
        raise _refused(part, "no hours, such as 08:00-18:00")
    start, end = (int(found[i]) * 60 + int(found[i + 1]) for i in (1, 3))
    if start >= _DAY_MINUTES or end > _DAY_MINUTES or int(found[2]) > 59 or int(found[4]) > 59:
        raise _refused(part, "no hours of a day")
    if start == end:
        raise _refused(part, "the hours end where they begin")
    return start, end


def _refused(part: str, why: str) -> EdgepackError:
    return EdgepackError(f"{part[:100]!r} is not a bandwidth: {why}", remedy=EXAMPLE)
