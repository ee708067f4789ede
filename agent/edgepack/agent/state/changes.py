"""Notice of changed files by the kernel (inotify), instead of looking again and again.

A process has a single notifier, since a user may have 128 of them. Where the kernel gives no notice
(none is left, or the file system has none), a reader must look by itself.
"""

import contextlib
import ctypes
import os
import struct
import threading
from pathlib import Path

_CLOSE_WRITE, _MOVED_TO, _DELETE = 0x8, 0x80, 0x200
_IGNORED = 0x8000
_HEADER = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class ChangeNotifier:
    """Sets events when files of watched folders change; safe to use from several threads.

    Raises:
        OSError: The system gives no notice.
    """

    def __init__(self) -> None:
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._file = self._libc.inotify_init1(os.O_CLOEXEC)
        except AttributeError as error:
            raise OSError("this system has no inotify") from error
        if self._file < 0:
            raise _last_error()
        self._guard = threading.Lock()
        self._events: dict[int, set[threading.Event]] = {}
        threading.Thread(target=self._read, name="edgepack-changes", daemon=True).start()

    def watch(self, folder: Path, event: threading.Event) -> bool:
        """Set an event from now on when a file of a folder is written, renamed or removed.

        Returns:
            False if the kernel does not watch the folder.
        """
        with self._guard:
            mask = _CLOSE_WRITE | _MOVED_TO | _DELETE
            number: int = self._libc.inotify_add_watch(self._file, os.fsencode(folder), mask)
            if number < 0:
                return False
            self._events.setdefault(number, set()).add(event)
        return True

    def is_watching(self, event: threading.Event) -> bool:
        """Return True as long as the kernel watches a folder for an event."""
        with self._guard:
            return any(event in events for events in self._events.values())

    def forget(self, event: threading.Event) -> None:
        """Set an event no more."""
        with self._guard:
            for number, events in list(self._events.items()):
                events.discard(event)
                if not events:
                    del self._events[number]
                    self._libc.inotify_rm_watch(self._file, number)

    def leave_to_parent(self) -> None:
        """Close the notices of the parent process. For a forked child."""
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _read(self) -> None:
        while True:
            try:
                content = os.read(self._file, _READ_BYTES)
            except OSError:
                return
            at = 0
            while at + _HEADER.size <= len(content):
                number, mask, _, length = _HEADER.unpack_from(content, at)
                at += _HEADER.size + length
                with self._guard:
                    for event in self._events.get(number, ()):
                        event.set()
                    if mask & _IGNORED:  # The folder is gone.
                        self._events.pop(number, None)


_guard = threading.Lock()
_notifier: ChangeNotifier | None = None


def notifier() -> ChangeNotifier | None:
    """Return the notifier of this process; None if the system gives no notice."""
    global _notifier
    with _guard:
        if _notifier is None:
            with contextlib.suppress(OSError):
                _notifier = ChangeNotifier()
        return _notifier


def _note_fork() -> None:
    """Leave the parent's notifier to the parent: both would read the same notices."""
    global _guard, _notifier
    _guard = threading.Lock()
    if _notifier is not None:
        _notifier.leave_to_parent()
    _notifier = None


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
