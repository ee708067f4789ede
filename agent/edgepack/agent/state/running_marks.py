"""Marks of the inferences that run in a process, in memory that outlives the process.

Each thread has a byte behind the heartbeat of its process (`holders`), which the process maps: a
mark takes 40 ns. A space stands for no inference, so that the file stays valid JSON.

A process without access to the runtime directory writes its marks to a file on the disk instead,
since a failing disk would kill a process that maps such a file.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import get_ident
from typing import Protocol

PLACES = 1024
"""Threads with a mark of their own."""
IDLE, RUNNING = ord(" "), ord("\n")
UNKNOWN_MARKS = bytes((RUNNING,)) + bytes((IDLE,)) * (PLACES - 1)
"""Marks of a new file: until `RunningMarks.keep_in`, an inference may run."""


class Cells(Protocol):
    """A byte for each place."""

    def __setitem__(self, place: int, mark: int, /) -> None:
        """Set the mark of a place."""


class _Places(dict[int, int]):
    """Places of threads, by their identifiers; the kernel reuses identifiers of ended threads."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    def __missing__(self, thread: int) -> int:
        place = self[thread] = next(self._numbers) % PLACES
        return place


class _WrittenCells:
    """Marks in a file that is not mapped; a mark takes 3 us.

    Args:
        path: The file.
        at: Position of the first mark.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path, at: int) -> None:
        self._descriptor, self._at = os.open(path, os.O_WRONLY | os.O_CLOEXEC), at

    def __setitem__(self, place: int, mark: int) -> None:
        with suppress(OSError):
            os.pwrite(self._descriptor, bytes((mark,)), self._at + place)

    def __del__(self) -> None:
        # Not at the end of the registration: an inference may still run.
        with suppress(AttributeError, OSError):
            os.close(self._descriptor)


class RunningMarks:
    """Marks of a process for a model; safe to use from several threads.

    Attributes:
        places: Place of each thread.
        cells: Their marks, which may move to another file at any time.
    """

    def __init__(self) -> None:
        self.places = _Places()
        self.cells: Cells = bytearray(bytes((IDLE,)) * PLACES)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark that this thread runs the model while the block runs."""
        place = self.places[get_ident()]
        self.cells[place] = RUNNING
        try:
            yield
        finally:
            self.cells[place] = IDLE

    def keep_in(self, path: Path, at: int, *, is_memory: bool) -> None:
        """Keep the marks at the end of a file of this process from now on.

        Args:
            path: The file.
            at: Position of the first mark.
            is_memory: Whether the file lies in memory (tmpfs) and can be mapped.

        Raises:
            OSError: The file cannot be opened; the marks stay where they were.
        """
        cells: Cells
        if is_memory:
            # Opened anew: a forked child keeps the descriptor of a map, and must not keep the lock.
            with path.open("r+b", buffering=0) as file:
                cells = memoryview(mmap.mmap(file.fileno(), at + PLACES))[at:]
        else:
            cells = _WrittenCells(path, at)
        cells[UNKNOWN_MARKS.index(RUNNING)] = IDLE
        self.cells = cells
