"""Maintenance windows: `02:00-05:00`, `sat,sun 22:00-06:00`, in the time zone of each device."""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import msgspec

from edgepack.errors import FleetError
from edgepack.fleet.database.schema import RolloutRow

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EXAMPLE = "--window 'mon-fri 02:00-05:00'"
_WINDOW = re.compile(r"(?:([a-z,-]{3,40}) +)?(\d\d):(\d\d)-(\d\d):(\d\d)")
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}")


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A window that opens on some days of the week.

    Attributes:
        days: Opening days, 0 for Monday.
        opens, closes: Minutes since midnight; a window that closes earlier than its opening closes
            on the next day.
    """

    days: frozenset[int]
    opens: int
    closes: int

    def is_open(self, zone: str, now: float) -> bool:
        """Return True if the window is open at a moment, in seconds since the epoch, by the zone's
        clocks.
        """
        local = datetime.fromtimestamp(now, zone_of(zone))
        minute = local.hour * 60 + local.minute
        yesterday = (local.date() - timedelta(days=1)).weekday()
        if self.opens < self.closes:
            return local.weekday() in self.days and self.opens <= minute < self.closes
        opened_today = local.weekday() in self.days and minute >= self.opens
        return opened_today or (yesterday in self.days and minute < self.closes)


def parse_window(text: str) -> Window:
    """Parse a window from text.

    Raises:
        FleetError: The text is not a window.
    """
    found = _WINDOW.fullmatch(text.strip().lower())
    days = _days(found[1]) if found else None
    opens, closes = (_minutes(found, 2), _minutes(found, 4)) if found else (None, None)
    if days is None or opens is None or closes is None or opens == closes:
        raise FleetError(
            f"{text[:60]!r} is not a maintenance window",
            found_in="days (mon-fri, or sat,sun; all when left out), opening and closing",
            remedy=EXAMPLE,
        )
    return Window(days=days, opens=opens, closes=closes)


def closed_zones(rollout: RolloutRow, now: float) -> tuple[str, ...]:
    """Return the time zones of a rollout's devices in which its maintenance window is not open.

    An unknown zone name, from a device that joined later, counts as closed.
    """
    if not rollout.settings.window:
        return ()
    window = parse_window(rollout.settings.window)

    def is_open(zone: str) -> bool:
        try:
            return window.is_open(zone, now)
        except FleetError:
            return False

    return tuple(zone for zone in rollout.zones if not is_open(zone))


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its name, such as `Europe/Berlin`; UTC for "".

    Raises:
        FleetError: There is none.
    """
    if name in ("", "UTC"):
        return UTC
    try:
        return ZoneInfo(name if _ZONE.fullmatch(name) else "")
    except (KeyError, OSError, ValueError) as error:  # not found, a folder, or no such name
        raise FleetError(
            f"{name[:60]!r} is not a time zone",
            found_in="label timezone",
            remedy="edgepack fleet devices label cam-7 timezone=Europe/Berlin",
        ) from error


def _days(text: str | None) -> frozenset[int] | None:
    if text is None:
        return frozenset(range(7))
    found: set[int] = set()
    for word in text.split(","):
        first, _, last = word.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            return None
        start, end = DAYS.index(first), DAYS.index(last or first)
        found |= {day % 7 for day in range(start, end + (7 if end < start else 0) + 1)}
    return frozenset(found)


def _minutes(found: re.Match[str], group: int) -> int | None:
    hour, minute = int(found[group]), int(found[group + 1])
    return hour * 60 + minute if minute < 60 and hour * 60 + minute <= 24 * 60 else None
