"""Note that a signal such as SIGTERM ended a process by its default action.

No Python handler can do this: such a handler runs only after a blocking call in C, so a program
with such a call would ignore SIGTERM. The handler of `faulthandler` runs at once, writes the stack
of the thread to a file, and then lets the default action end the process. The file is a
registration of the process (`holders`): the written text marks the end.

A signal that the program handles or ignores is left alone, and a later handler of the program
replaces this one.
"""

import contextlib
import faulthandler
import fcntl
import os
import resource
import signal
import threading
from pathlib import Path

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_LEAST_DESCRIPTOR = 1000
"""The descriptor is a high number: a program that closes descriptors that it does not know would
soon reuse a low number for a file of its own."""


class _Notes:
    """State of this process.

    Attributes:
        lock: Guards the rest.
        paths: Files of open registrations; the newest gets the text.
        descriptor: Descriptor to which the handlers write; -1 before the first registration.
        identity: Device and inode of its file.
        handled: Signals with the handler.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.paths: list[Path] = []
        self.descriptor, self.identity = -1, (0, 0)
        self.handled: set[signal.Signals] = set()

    def point(self) -> None:
        """Have the handlers write to the newest registration; to nowhere without one.

        Raises:
            OSError: The file cannot be opened.
        """
        path = self.paths[-1] if self.paths else Path(os.devnull)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            if self.descriptor >= 0 and _identity(self.descriptor) == self.identity:
                os.dup2(file, self.descriptor, inheritable=False)
            else:  # The first, or the program has closed the descriptor.
                soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                least = _LEAST_DESCRIPTOR if soft < 0 else min(soft - 1, _LEAST_DESCRIPTOR)
                self.descriptor = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, least)
                for number in self.handled:
                    self._register(number)
            self.identity = _identity(file)
        finally:
            os.close(file)

    def handle(self) -> None:
        """Set the handler of signals that the program leaves to their default action."""
        caught = _caught_or_ignored()
        for number in SIGNALS:
            if not caught >> (number - 1) & 1:
                faulthandler.unregister(number)  # Else `register` trusts a handler that is gone.
                self._register(number)
                self.handled.add(number)

    def _register(self, number: signal.Signals) -> None:
        faulthandler.register(number, file=self.descriptor, all_threads=False, chain=True)


_notes = _Notes()


def note_in(path: Path) -> None:
    """Note an end of this process by a signal at the end of a file, from now on.

    A file that cannot be opened, or a signal that cannot be handled, is left out.
    """
    with _notes.lock, contextlib.suppress(OSError, RuntimeError, ValueError):
        _notes.paths.append(path)
        _notes.point()
        _notes.handle()


def note_no_more_in(path: Path) -> None:
    """Note no end in a file any more.

    The handler stays: to restore an older handler could remove a newer one of the program.
    """
    with _notes.lock, contextlib.suppress(OSError, ValueError):
        _notes.paths.remove(path)
        _notes.point()


def _identity(descriptor: int) -> tuple[int, int]:
    """Return device and inode of an opened file; zeros for a descriptor that is not open."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _caught_or_ignored() -> int:
    """Return a mask of the signals that the program handles or ignores, in Python or in C.

    Raises:
        OSError: The kernel does not tell.
        ValueError: The kernel has another format.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigIgn:"))]
    if len(masks) != 2:
        raise ValueError("/proc/self/status names no signals")
    return masks[0] | masks[1]


def _note_fork() -> None:
    """Leave the parent's file to the parent. For a forked child."""
    _notes.lock, _notes.paths = threading.Lock(), []
    if _notes.descriptor >= 0:
        with contextlib.suppress(OSError):
            _notes.point()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
