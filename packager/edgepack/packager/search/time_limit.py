"""How long a search may take: a limit that holds once there is something to keep."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.progress import BuildStep, Progress

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
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
    """

    def __init__(self, limit_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._end = None if limit_s is None else clock() + limit_s
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
        if self._is_enforced and self.left_s == 0.0:
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
    limit_s: float | None, count: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[TimeLimit]:
    """Limits for searches that come one after the other: each may take its share of what is left.

    Args:
        limit_s: Seconds for all of them; None for no limit.
        count: How many searches.
        clock: See `TimeLimit`.
    """
    whole = TimeLimit(limit_s, clock)
    for left in range(count, 0, -1):
        left_s = whole.left_s
        yield TimeLimit(None if left_s is None else left_s / left, clock)


def describe_duration(seconds: float) -> str:
    """Seconds in words: `90 s`, `10 min`, `1.5 h`."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
