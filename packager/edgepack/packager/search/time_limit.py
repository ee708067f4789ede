"""How long a search may take: a limit that holds once there is something to keep."""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.progress import BuildStep, Progress

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_AFTER_SEARCH = 0.04
"""Share of a build's time that what follows a profile's search is taken for before it was seen."""

_MOST_AFTER_SEARCH = 0.15
"""The same at the most, however long the steps before the search took."""

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
    """A limit on the wall time of a search, and on the build that the search is a part of.

    The search's own limit is not enforced before `enforce`: without one finished candidate there
    would be nothing to keep. The limit of the build always holds.

    Args:
        limit_s: Seconds from now; None for no limit.
        clock: Returns seconds; only differences count.
        shared_s: What it is a share of, seconds; None where it is all.
        total_s: Seconds from now until the build must end; None for no such limit.

    Attributes:
        looked_at_s: When it was last looked at, by its clock: where the search ended.
    """

    def __init__(
        self,
        limit_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        shared_s: float | None = None,
        total_s: float | None = None,
    ) -> None:
        self.limit_s = limit_s
        self.shared_s = limit_s if shared_s is None else shared_s
        self.looked_at_s = clock()
        self._clock = clock
        self._end = None if limit_s is None else self.looked_at_s + limit_s
        self._total_end = None if total_s is None else self.looked_at_s + total_s
        self._is_enforced = False
        self._is_paused = False

    @property
    def left_s(self) -> float | None:
        """Seconds that are left; None without a limit."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    @property
    def is_build_over(self) -> bool:
        """Return whether the build's own time is used up: what may be left out is left out."""
        return self._total_end is not None and self._clock() >= self._total_end

    def enforce(self) -> None:
        """From now on `check` may raise."""
        self._is_enforced = True

    def check(self) -> None:
        """End the search when its time is used up.

        Raises:
            OutOfTimeError: The time is used up, and the limit is enforced; or the build's is.
        """
        self.looked_at_s = self._clock()
        self.check_fits(0.0)
        ends = self._total_end
        if not self._is_paused and ends is not None and self.looked_at_s >= ends:
            raise OutOfTimeError

    def check_fits(self, needed_s: float) -> None:
        """End the search where what it would begin now does not fit into its time.

        Args:
            needed_s: Seconds that it takes, from the last `check` on.

        Raises:
            OutOfTimeError: It does not fit, and the limit is enforced.
        """
        if self._is_enforced and self._end is not None and self.looked_at_s + needed_s >= self._end:
            raise OutOfTimeError

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block that is finished whatever it takes: what is kept must be made."""
        was_enforced, self._is_enforced = self._is_enforced, False
        was_paused, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_enforced, self._is_paused = was_enforced, was_paused

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Run a block that the end of an enforced limit stops, in the middle of a computation.

        A timer's signal raises there, as Ctrl-C does. In another thread than the main one, or
        beside another timer, the block ends at its next `check`.

        Raises:
            OutOfTimeError: The time ended.
        """
        left_s = self.left_s
        is_main = threading.current_thread() is threading.main_thread()
        has_timer = is_main and signal.getitimer(signal.ITIMER_REAL)[0] > 0.0
        if not self._is_enforced or left_s is None or not is_main or has_timer:
            yield
            return
        if left_s == 0.0:
            raise OutOfTimeError

        def stop(*_: object) -> None:
            raise OutOfTimeError

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, left_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

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
    now_s = clock()
    begun_s = now_s if started_s is None else started_s
    end_s = begun_s + limit_s
    # The float model ran on all samples before: what follows a search runs about as much.
    after_s = max(_AFTER_SEARCH * limit_s, min(now_s - begun_s, _MOST_AFTER_SEARCH * limit_s))
    for number in range(count):
        left = count - number
        spare_s = end_s - clock() - (left + 1) * after_s
        share_s = max(0.0, spare_s / left)
        limit = TimeLimit(share_s, clock, shared_s=limit_s, total_s=end_s - clock())
        yield limit
        took_s = clock() - limit.looked_at_s
        after_s = took_s if number == 0 else max(after_s, took_s)


def describe_duration(seconds: float) -> str:
    """Seconds in words: `90 s`, `10 min`, `1.5 h`."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
