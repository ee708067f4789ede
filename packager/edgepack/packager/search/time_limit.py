"""How long a search may take: a limit that holds once there is something to keep."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.progress import BuildStep, Progress

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_AFTER_SEARCH = 0.04
"""Share of a build's time that what follows a profile's search is taken for before it was seen."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh])")


class OutOfTimeError(Exception):
    """The search has used up its time; what was found until then stands."""


def parse_duration(text: str, found_in: str) -> float:
    """Seconds of a text like `90s`, `10m` or `1.5h`.

    Args:
        text: The text.
        found_in: Where it stands, for the message.

    Raises:
        BuildError: It is no duration, or none at all.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if seconds <= 0.0:
        raise BuildError(
            f"'{text}' is no time to search for",
            found_in=found_in,
            remedy="a number above 0 with s, m or h, e.g. 10m",
        )
    return seconds


class TimeLimit:
    """A limit on wall time.

    It is not enforced before `enforce`: one candidate must be finished whatever it takes, or
    there would be nothing to keep.

    Args:
        limit_s: Seconds from now; None for no limit.
        clock: Returns seconds; only differences count.
        shared_s: What it is a share of, seconds; None where it is all.

    Attributes:
        looked_at_s: When it was last looked at, by its clock: where the search ended.
    """

    def __init__(
        self,
        limit_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        shared_s: float | None = None,
    ) -> None:
        self.limit_s = limit_s
        self.shared_s = limit_s if shared_s is None else shared_s
        self.looked_at_s = clock()
        self._clock = clock
        self._end = None if limit_s is None else self.looked_at_s + limit_s
        self._is_enforced = False

    @property
    def left_s(self) -> float | None:
        """Seconds that are left; None without a limit."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    def enforce(self) -> None:
        """From now on `check` may raise."""
        self._is_enforced = True

    def check(self) -> None:
        """Ends the search when its time is used up.

        Raises:
            OutOfTimeError: It is, and the limit is enforced.
        """
        self.looked_at_s = self._clock()
        if self._is_enforced and self._end is not None and self.looked_at_s >= self._end:
            raise OutOfTimeError

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block that is finished whatever it takes: what is kept must be made."""
        was_enforced, self._is_enforced = self._is_enforced, False
        try:
            yield
        finally:
            self._is_enforced = was_enforced

    def watch(self, progress: Progress) -> Progress:
        """A `progress` that checks the limit each time it is told something."""

        def watched(step: BuildStep) -> None:
            progress(replace(step, left_s=self.left_s))
            self.check()

        return watched


def share_time(
    limit_s: float | None,
    count: int,
    clock: Callable[[], float] = time.monotonic,
    started_s: float | None = None,
) -> Iterator[TimeLimit]:
    """Limits for the searches of a build, one after the other, so that the build ends in time.

    Each may take its share of what is left, less what comes after the searches: as much as it took
    the profiles before, for each profile that is left and for the rehearsal of all.

    Args:
        limit_s: Seconds for the build; None for no limit.
        count: How many searches.
        clock: See `TimeLimit`.
        started_s: When the build began, by that clock; None for now.
    """
    if limit_s is None:
        yield from (TimeLimit(None, clock) for _ in range(count))
        return
    end_s = (clock() if started_s is None else started_s) + limit_s
    after_s = _AFTER_SEARCH * limit_s
    for number in range(count):
        left = count - number
        spare_s = end_s - clock() - (left + 1) * after_s
        limit = TimeLimit(max(0.0, spare_s / left), clock, shared_s=limit_s)
        yield limit
        took_s = clock() - limit.looked_at_s
        after_s = took_s if number == 0 else max(after_s, took_s)


def describe_duration(seconds: float) -> str:
    """Seconds in words: `90 s`, `10 min`, `1.5 h`."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
