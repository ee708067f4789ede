"""Long background work: one piece at a time, that can be ordered to end.

An action hands over what may take long (reading gigabytes, a probe, a hook) and is called again
once that is done. The loop never waits for it, so it hears newer offers meanwhile.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from edgepack.halt import Halt

Work = Callable[[Halt], Any]


class Job:
    """Piece of work."""

    def __init__(self, work: Work) -> None:
        self.halt = Halt()
        self._work = work
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def do(self, tidy: Callable[[], object] = lambda: None) -> None:
        """Do the work, in whatever thread this is, and tidies up after it."""
        try:
            self.halt.check()
            self._result = self._work(self.halt)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error
        tidy()
        self._done.set()

    @property
    def is_done(self) -> bool:
        """True if it ended, in whatever way."""
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is done; False when it is not by then."""
        return self._done.wait(timeout_s)

    def result(self) -> Any:
        """Return the result; raise the error of the work."""
        if self._error is not None:
            raise self._error
        return self._result


class Worker(Protocol):
    """Worker that runs jobs."""

    def begin(self, work: Work) -> Job:
        """Take a piece of work; it may be done already when this returns."""


class InlineWorker:
    """Does the work at once; for a command that has nothing else to do, and for tests.

    Args:
        tidy: Called after each piece.
    """

    def __init__(self, tidy: Callable[[], object] = lambda: None) -> None:
        self._tidy = tidy

    def begin(self, work: Work) -> Job:
        """Do the work."""
        job = Job(work)
        job.do(self._tidy)
        return job


class ThreadWorker:
    """A thread that does one piece of work after the other.

    Args:
        wake: Called when a piece is done.
        tidy: Called after each piece, in the thread that did it.
    """

    def __init__(
        self, wake: Callable[[], None], *, tidy: Callable[[], object] = lambda: None
    ) -> None:
        self._wake = wake
        self._tidy = tidy
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._current: Job | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def begin(self, work: Work) -> Job:
        """Take a piece of work; it is done when those before it are."""
        job = Job(work)
        if self._stopped:
            job.halt.set()
        self._queue.put(job)
        return job

    def stop(self, timeout_s: float) -> bool:
        """Halt what is done now and all that waits; False when that did not end in time."""
        self._stopped = True
        current = self._current
        if current is not None:
            current.halt.set()
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            self._current = job
            if self._stopped:
                job.halt.set()
            job.do(self._tidy)
            self._wake()
