"""Log handler that writes a repeated warning once and counts the repetitions.

A repeated failure therefore does not fill the disk.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext

WINDOW_S = 60.0
MOST_ALIKE = 50
"""Warnings of one place in the code that are written in a window, if their words differ."""
MAX_PLACES = 500

_Place = tuple[str, int]


class _Window:
    """Records from the same place in the code since a moment."""

    def __init__(self, now: float) -> None:
        self.begun_at = now
        self.seen: set[str] = set()
        self.held = 0
        self.last: logging.LogRecord | None = None


class RepeatedRecords(logging.Handler):
    """Handler that passes on each warning or error once a minute, then its count.

    Args:
        target: Writes the records.
        clock: Monotonic, seconds.
    """

    def __init__(
        self, target: logging.Handler, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._target, self._clock = target, clock
        self._windows: dict[_Place, _Window] = {}
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record or count the record."""
        if record.levelno < logging.WARNING:
            self._target.handle(record)
            return
        now = self._clock()
        place = (record.pathname, record.lineno)
        window = self._windows.get(place)
        if window is None or now - window.begun_at >= WINDOW_S:
            if window is not None:
                self._close(place, window)
            if len(self._windows) >= MAX_PLACES:
                self.close_windows()
            window = self._windows[place] = _Window(now)
        words = _words(record)
        if words in window.seen or len(window.seen) >= MOST_ALIKE:
            window.held, window.last = window.held + 1, record
            self._start_timer()
            return
        window.seen.add(words)
        self._target.handle(record)

    def close_windows(self) -> None:
        """Write the counts of all that was held back."""
        with self.lock or nullcontext():
            for place, window in tuple(self._windows.items()):
                self._close(place, window)
            self._timer = None

    def close(self) -> None:
        """Write the counts, and end."""
        if self._timer is not None:
            self._timer.cancel()
        self.close_windows()
        super().close()

    def _close(self, place: _Place, window: _Window) -> None:
        del self._windows[place]
        if window.last is None:
            return
        last, length_s = window.last, self._clock() - window.begun_at
        counted = logging.LogRecord(
            last.name,
            last.levelno,
            last.pathname,
            last.lineno,
            "%d more in %.0f s like: %s",
            (window.held, length_s, last.getMessage()),
            None,
        )
        self._target.handle(counted)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(WINDOW_S, self.close_windows)
            self._timer.daemon = True
            self._timer.start()


def _words(record: logging.LogRecord) -> str:
    raised = record.exc_info[1] if record.exc_info else None
    return f"{record.getMessage()} {type(raised).__name__ if raised else ''} {raised or ''}"[:500]
