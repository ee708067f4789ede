"""Progress without a terminal: a line for each step, with its duration."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from edgepack.packager.progress import BuildStep, Progress

_STILL_S = 30.0
"""A step that takes longer says so as often."""

_UNTOLD_S = 0.05
"""A step that takes less has no line, unless something came of it; its time goes to the next."""


class ProgressLines:
    """Writes a line when a step is over.

    Args:
        write: Writes a line.
        clock: Returns seconds; only differences count.
    """

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._lock = threading.Lock()
        self._step = BuildStep()
        self._since = self._told = clock()

    def __call__(self, step: BuildStep) -> None:
        """Record the current step."""
        with self._lock:
            if not step.what:
                step = replace(step, what=self._step.what, profile=self._step.profile)
            elif (step.profile, step.what) != (self._step.profile, self._step.what):
                self._end()
            self._step = step
            if step.outcome:
                self._end()

    def report_silence(self, every_s: float) -> None:
        """Report the current step after a silence of `every_s` seconds."""
        with self._lock:
            if self._step.what and self._clock() - self._told >= every_s:
                self._tell(f"{self._step} …")

    def end(self) -> None:
        """Report the last step."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        step, self._step = self._step, BuildStep()
        if step.what and (step.outcome or self._clock() - self._since >= _UNTOLD_S):
            self._tell(str(replace(step, detail="", total=0)))
            self._since = self._clock()

    def _tell(self, words: str) -> None:
        self._told = self._clock()
        self._write(f"{self._told - self._since:7.1f} s  {words}")


@contextmanager
def progress_lines(write: Callable[[str], None], every_s: float = _STILL_S) -> Iterator[Progress]:
    """Write lines; during a long step, repeat the line.

    Args:
        write: Writes a line.
        every_s: How long there may be silence, seconds.
    """
    lines, is_over = ProgressLines(write), threading.Event()

    def watch() -> None:
        while not is_over.wait(every_s / 2):
            lines.report_silence(every_s)

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield lines
        lines.end()
    finally:
        is_over.set()
        watcher.join()
