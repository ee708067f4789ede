"""Disk faults (full, read-only, failing) as states that are reported, and that an agent survives.

Nothing that needs the disk is given up at once: each caller tries again, and reports here whether
the last try worked. A fault is logged at its begin, at changes and at its end.
"""

import errno
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

FULL_BELOW_BYTES = 64 * 1024
"""Free space below which a disk is called full: a journal with its outbox may take so much."""
_TITLES = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk full",
    errno.EROFS: "disk is read-only",
    errno.EIO: "disk fails",
}


class DiskWatch:
    """The disk of the state folder.

    Args:
        state_dir: The agent's state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._state = ""
        self._faults: dict[str, tuple[int | None, str]] = {}

    @property
    def troubles(self) -> tuple[str, ...]:
        """Problems of the disk, a sentence for each subject."""
        seen = (f"the disk is {self._state}",) if self._state else ()
        return (*seen, *(f"{subject}: {text}" for subject, (_, text) in self._faults.items()))

    def look(self) -> None:
        """Note whether the disk is full or read-only, before anything fails because of that."""
        state = read_disk_state(self._state_dir)
        if state and state != self._state:
            log.warning("the disk of %s is %s", self._state_dir, state)
        self._state = state

    def fault_of(self, subject: str) -> str:
        """Return the fault of a subject; "" when the last try worked."""
        return self._faults.get(subject, (None, ""))[1]

    def failed(self, subject: str, error: OSError) -> None:
        """Note a failed attempt; log the failure unless it equals the previous failure."""
        if self._faults.get(subject, (None, ""))[0] == error.errno and subject in self._faults:
            return
        text = describe_fault(error, self._state_dir)
        self._faults[subject] = (error.errno, text)
        log.warning("%s: %s; trying again", subject, text)

    def works(self, subject: str) -> None:
        """Note that a try worked."""
        if subject in self._faults:
            _, text = self._faults.pop(subject)
            log.info("%s: works again, after: %s", subject, text)


def describe_fault(error: OSError, state_dir: Path) -> str:
    """Return an error of the disk as text for a person, with file and free space."""
    title = _TITLES.get(error.errno or 0, "cannot go on")
    place = f", {error.filename}" if error.filename else ""
    free = _free_bytes(state_dir)
    left = ""
    if title == "disk full" and free is not None:
        left = f"; {free} bytes are free: delete files on the disk of {state_dir}"
    return f"{title} ({error.strerror or error}{place}){left}"


def read_disk_state(state_dir: Path) -> str:
    """Return the disk's present faults for a state folder; "" without a fault.

    The agent need not run. A disk that fails to read or write (EIO) is not seen here.
    """
    try:
        found = os.statvfs(state_dir)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if found.f_flag & os.ST_RDONLY:
        return "read-only: updates wait until it can be written"
    free = found.f_bavail * found.f_frsize
    if free < FULL_BELOW_BYTES:
        return f"full: less than {FULL_BELOW_BYTES} bytes are free; updates wait for space"
    if found.f_files and not found.f_favail:
        return "full: no file can be made (no inodes); updates wait for space"
    return ""


def _free_bytes(state_dir: Path) -> int | None:
    try:
        found = os.statvfs(state_dir)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
