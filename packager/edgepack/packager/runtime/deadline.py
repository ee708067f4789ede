"""The end of a build's time, for computations in this process and for its children."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.tensors.sequence import Feeds
from edgepack.tasks.arrays import Outputs


class OutOfTimeError(BaseException):
    """The time is used up; finished results stand.

    Like KeyboardInterrupt, this class is not an `Exception`: any library may raise the error, and
    no handler of that library's errors may swallow it.
    """


class Deadline:
    """A point of time at which work ends.

    1. `check` raises there; called before each inference and at every report of progress.
    2. `timeout_s` bounds children, which also get the limit as their own.
    3. `interrupting` stops computations in between, in the main thread.

    Args:
        left_s: Seconds from now; None for no end.
        clock: Returns seconds; only differences count.
    """

    def __init__(
        self, left_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._end_s = None if left_s is None else clock() + left_s

    @property
    def left_s(self) -> float | None:
        """Seconds that are left; None without an end."""
        return None if self._end_s is None else max(0.0, self._end_s - self._clock())

    @property
    def is_over(self) -> bool:
        """Return whether the time is used up."""
        return self.left_s == 0.0

    def earlier_by(self, seconds: float) -> "Deadline":
        """Return a deadline some seconds before this deadline."""
        left_s = self.left_s
        return Deadline(None if left_s is None else left_s - seconds, self._clock)

    def at_least(self, seconds: float) -> "Deadline":
        """Return this deadline, or a deadline `seconds` from now if later."""
        left_s = self.left_s
        return self if left_s is None or left_s >= seconds else Deadline(seconds, self._clock)

    def check(self) -> None:
        """Do nothing while there is time.

        Raises:
            OutOfTimeError: The time is used up.
        """
        if self.is_over:
            raise OutOfTimeError

    def timeout_s(self, most_s: float) -> float:
        """Return how long a child may take: `most_s`, or the seconds that are left.

        Raises:
            OutOfTimeError: The time is used up.
        """
        self.check()
        left_s = self.left_s
        return most_s if left_s is None else min(most_s, left_s)

    def run_in_time(self, run: Run) -> Run:
        """Return a function that checks the time before each inference of `run`."""

        def checked(feeds: Feeds) -> Outputs:
            self.check()
            return run(feeds)

        return checked

    def watch(self, progress: Progress) -> Progress:
        """Return a `progress` that checks the time whenever a step is reported."""

        def checked(step: BuildStep) -> None:
            progress(step)
            self.check()

        return checked

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Run a block that the deadline stops in the middle of a computation.

        A timer's signal raises there, as Ctrl-C does; native code ends first. In another thread
        than the main thread, or next to a foreign timer, the block ends at its next `check`.

        Raises:
            OutOfTimeError: The time is used up.
        """
        self.check()
        left_s = self.left_s
        if left_s is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        outer_s, began_s = signal.getitimer(signal.ITIMER_REAL)[0], time.monotonic()
        before = signal.getsignal(signal.SIGALRM)
        if outer_s and (before is not _stop or outer_s <= left_s):
            yield
            return
        signal.signal(signal.SIGALRM, _stop)
        signal.setitimer(signal.ITIMER_REAL, max(left_s, _SOONEST_S))
        try:
            yield
        except Exception as error:  # such as that of a file which the signal left half written
            if self.is_over:
                raise OutOfTimeError from error
            raise
        finally:
            passed_s = time.monotonic() - began_s
            signal.setitimer(
                signal.ITIMER_REAL, max(outer_s - passed_s, _SOONEST_S) if outer_s else 0.0
            )
            signal.signal(signal.SIGALRM, before)


_SOONEST_S = 1e-6
"""A timer of 0 s would be none."""


def _stop(*_: object) -> None:
    raise OutOfTimeError
