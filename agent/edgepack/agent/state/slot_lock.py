"""Locks between processes of a device: `flock`, so that a killed process leaves none.

Two locks are on each slot. A process that compares two releases locks the folder. A session that
may outlive the release's active time locks the manifest, shared with other sessions; the agent
removes no slot with a locked manifest.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from edgepack.bundle.manifest import MANIFEST_FILE

_open_files: set[int] = set()


class SlotLock:
    """A lock that this process holds until `release`."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._pid = os.getpid()
        _open_files.add(file)

    def overwrite(self, content: bytes) -> None:
        """Write content over the begin of a locked file of `lock_new_file`.

        Raises:
            OSError: The file cannot be written.
        """
        if self._file in _open_files and self._pid == os.getpid():
            os.pwrite(self._file, content, 0)

    def release(self) -> None:
        """Release the lock. A second call does nothing, and likewise a call in a forked child."""
        if self._file in _open_files and self._pid == os.getpid():
            _open_files.discard(self._file)
            # Closing alone would not do: a forked child may have the same open file.
            with contextlib.suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)


def lock_for_comparison(slot: Path) -> SlotLock | None:
    """Lock a slot's folder for this process alone; return None if another process holds the lock.

    Raises:
        OSError: The slot is not there, or cannot be read.
    """
    return _lock(slot, fcntl.LOCK_EX)


def lock_for_session(slot: Path) -> SlotLock | None:
    """Lock a slot against removal, shared with other sessions; return None if the agent is removing
    the slot.

    Raises:
        OSError: The slot is not there, or cannot be read.
    """
    return _lock(slot / MANIFEST_FILE, fcntl.LOCK_SH)


def lock_for_removal(slot: Path) -> SlotLock | None:
    """Lock a slot for its removal; return None if a session holds the slot.

    Raises:
        OSError: The slot has no manifest, so nothing can hold the slot.
    """
    return _lock(slot / MANIFEST_FILE, fcntl.LOCK_EX)


def lock_new_file(path: Path, content: bytes) -> SlotLock:
    """Create a file that nobody has seen without its lock and its content.

    Raises:
        OSError: The file cannot be created.
    """
    hidden = path.with_suffix(".new")
    file = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.pwrite(file, content, 0)
        hidden.rename(path)
    except OSError:
        os.close(file)
        hidden.unlink(missing_ok=True)
        raise
    return SlotLock(file)


def _lock(path: Path, kind: int) -> SlotLock | None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            return None
        raise
    if not os.fstat(file).st_nlink:  # Removed between opening and locking.
        os.close(file)
        return None
    return SlotLock(file)


def _close_in_child() -> None:
    """Close the parent's files, so that a child does not prolong the parent's locks."""
    for file in tuple(_open_files):
        with contextlib.suppress(OSError):
            os.close(file)
    _open_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
