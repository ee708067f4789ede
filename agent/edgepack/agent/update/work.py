"""Long background work: a single piece at a time, with an order to end.

An action submits long work (reading gigabytes, a probe, a hook) and is called again at its end. The
loop never waits for the work, so the loop receives newer offers meanwhile.
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
        """Run the work in the calling thread, then tidy up."""
        try:
            self.halt.check()
            self._result = self._work(self.halt)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            self._error = error
        tidy()
        self._done.set()

    @property
    def is_done(self) -> bool:
        """True if the work ended, with any result."""
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the work is done; return False after the timeout."""
        return self._done.wait(timeout_s)

    def result(self) -> Any:
        """Return the result; raise the error of the work."""
        if self._error is not None:
            raise self._error
        return self._result


class Worker(Protocol):
    """Worker that runs jobs."""

    def begin(self, work: Work) -> Job:
        """Accept a piece of work, which may be done at return."""


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
    """A thread that runs pieces of work in turn.

    Args:
        wake: Called when a piece is done.
        tidy: Called after each piece, in the worker's thread.
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
        """Accept a piece of work, which runs after all earlier pieces."""
        job = Job(work)
        if self._stopped:
            job.halt.set()
        self._queue.put(job)
        return job

    def stop(self, timeout_s: float) -> bool:
        """Halt the running and all waiting work; return False if the work did not end in time."""
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
