"""Time limit of a search, in force once a candidate can be kept."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.deadline import Deadline, OutOfTimeError

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_AFTER_SEARCH = 0.04
"""Share of a build's time that what follows a profile's search is taken for before it was seen."""

_MOST_AFTER_SEARCH = 0.15
"""The same at the most, however long the steps before the search took."""

_SIMULATOR_SHARE = 0.25
"""Share of a profile's time that is left for its simulator, which may take minutes to begin."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh])")


def parse_duration(text: str, found_in: str) -> float:
    """Return seconds of a text like `90s`, `10m` or `1.5h`.

    Args:
        text: The text.
        found_in: Source of the text, for the message.

    Raises:
        BuildError: The text is not a duration, or is 0.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if seconds <= 0.0:
        raise BuildError(
            f"'{text}' is not a time to search for",
            found_in=found_in,
            remedy="a number above 0 with s, m or h, e.g. 10m",
        )
    return seconds


class TimeLimit:
    """The time of a profile's search, and of the build around the search.

    1. `left_s`: the search. Its end is not enforced before `enforce`: without a finished candidate
       there would be nothing to keep.
    2. `profile`: steps after the search that only add facts about a finished candidate, such as a
       run on the provider.
    3. `build`: everything. Unfinished variants are not published.

    Args:
        limit_s: Seconds from now for the search; None for no limit.
        clock: Returns seconds; only differences count.
        shared_s: The shared time, seconds; None for the whole.
        after_s: Seconds that the profile has after the search.
        build: The end of the build.

    Attributes:
        looked_at_s: Time of the last check, by its clock: the end of the search.
    """

    def __init__(
        self,
        limit_s: float | None,
        clock: Callable[[], float] = time.monotonic,
        shared_s: float | None = None,
        after_s: float = 0.0,
        build: Deadline | None = None,
    ) -> None:
        self.limit_s = limit_s
        self.shared_s = limit_s if shared_s is None else shared_s
        self.looked_at_s = clock()
        self.build = build or Deadline()
        self.profile = Deadline(None if limit_s is None else limit_s + after_s, clock)
        self._search = Deadline(limit_s, clock)
        self._clock = clock
        self._is_enforced = False

    @property
    def left_s(self) -> float | None:
        """Seconds that are left for the search; None without a limit."""
        return self._search.left_s

    def enforce(self) -> None:
        """Allow `check` to raise from now on."""
        self._is_enforced = True

    def reserve(self, seconds: float) -> None:
        """End the search early enough for the known steps that follow.

        Args:
            seconds: Duration of the following steps.
        """
        earlier = self.profile.earlier_by(seconds)
        if earlier.left_s is not None and earlier.left_s < (self.left_s or 0.0):
            self._search = earlier

    def check(self) -> None:
        """End the search when its time is used up.

        Raises:
            OutOfTimeError: The time is used up, and the limit is enforced; or the build's is.
        """
        self.looked_at_s = self._clock()
        self.check_fits(0.0)
        self.build.check()

    def check_fits(self, needed_s: float) -> None:
        """End the search if the next step does not fit into its time.

        Args:
            needed_s: Duration of the step, seconds.

        Raises:
            OutOfTimeError: The step does not fit, and the limit is enforced.
        """
        if self._is_enforced and self.left_s is not None and self.left_s <= needed_s:
            raise OutOfTimeError

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Run a block that the search's end does not stop: the kept candidate must be made."""
        was_enforced, self._is_enforced = self._is_enforced, False
        try:
            yield
        finally:
            self._is_enforced = was_enforced

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Run a block that the end of an enforced limit stops, see `Deadline.interrupting`.

        Raises:
            OutOfTimeError: The time is used up.
        """
        with self._search.interrupting() if self._is_enforced else nullcontext():
            yield

    def watch(self, progress: Progress) -> Progress:
        """Return a `progress` that checks the limit whenever a step is reported."""

        def watched(step: BuildStep) -> None:
            progress(replace(step, left_s=self.left_s))
            self.check()

        return watched


def share_time(
    limit_s: float | None,
    is_simulated: Sequence[bool],
    build: Deadline,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[TimeLimit]:
    """Yield a limit for each profile of a build in turn, so that the build ends in time.

    Each profile gets its share of the remaining time, less the time of all rehearsals. Its search
    ends before its share does: by the time that followed the searches of earlier profiles, and by a
    quarter for a simulator, which is started only then.

    Args:
        limit_s: Seconds of the whole build; None for no limit.
        is_simulated: For each profile, whether its provider is simulated here.
        build: The end of the build.
        clock: See `TimeLimit`.
    """
    if limit_s is None or build.left_s is None:
        yield from (TimeLimit(None, clock) for _ in is_simulated)
        return
    passed_s = limit_s - build.left_s
    # The float model ran on all samples before: what follows a search runs about as much.
    after_s = max(_AFTER_SEARCH * limit_s, min(passed_s, _MOST_AFTER_SEARCH * limit_s))
    for number, is_slow in enumerate(is_simulated):
        left_s, profiles = build.left_s, len(is_simulated) - number
        own_s = max(left_s - after_s, left_s / 2) / profiles
        search_s = max(0.0, own_s - max(after_s, _SIMULATOR_SHARE * own_s if is_slow else 0.0))
        limit = TimeLimit(search_s, clock, limit_s, after_s=own_s - search_s, build=build)
        yield limit
        took_s = clock() - limit.looked_at_s
        after_s = took_s if number == 0 else max(after_s, took_s)


def describe_duration(seconds: float) -> str:
    """Return seconds in words: `90 s`, `10 min`, `1.5 h`."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size or seconds == size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
