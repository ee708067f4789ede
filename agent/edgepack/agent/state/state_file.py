"""Versioned file of the state folder; the agent runs even if the file is damaged.

A damaged file is put aside under another name, for a person. A file of a newer edgepack is left
unchanged: nothing is read from the file, and nothing is written over it. A disk that cannot be read
now (EIO) is not damage: the file stays, and is read again later.
"""

import errno
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from edgepack.durable import flush_folder, is_disk_fault, write_file
from edgepack.versions import Format, NewerVersionError

log = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
Write = Callable[[Path, bytes], None]
"""Writes a small file durably."""

RUNTIME_LINK = "latency"
"""Link of the state folder to the runtime directory (tmpfs)."""
MAX_BYTES = 16 * 1024 * 1024
DAMAGED = ".damaged"
_RETRY_S = 1.0
LASTING_FAULT_S = 60.0
"""A file that cannot be read for so long, while others can, lies on a bad part of the disk."""


def read_regular(path: Path, *, limit_bytes: int = MAX_BYTES) -> bytes | None:
    """Return the content of a regular file, None if nothing is there. Links are followed.

    Raises:
        OSError: The file is not regular, is too long, or cannot be read.
    """
    return _read(path, os.O_NONBLOCK, limit_bytes)


def read_shared(path: Path, *, limit_bytes: int = MAX_BYTES) -> bytes | None:
    """Return the content of a regular file in a folder that other users may write to.

    Another user may put a link there, to a file that only this process may read.

    Raises:
        OSError: A link or anything else that is not a regular file lies there, or see
            `read_regular`.
    """
    return _read(path, os.O_NOFOLLOW, limit_bytes)


def open_shared(path: Path) -> int | None:
    """Open a file like `read_shared`, for reading; return the descriptor.

    Raises:
        OSError: See `read_shared`.
    """
    return _open(path, os.O_NOFOLLOW)


def _open(path: Path, flags: int) -> int | None:
    """Check the type first, then open the checked file: opening a device or a pipe may have
    effects.
    """
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
    except FileNotFoundError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(found)


def _read(path: Path, flags: int, limit_bytes: int) -> bytes | None:
    if (descriptor := _open(path, flags)) is None:
        return None
    with os.fdopen(descriptor, "rb", closefd=True, buffering=0) as file:
        content = bytearray()
        while piece := file.read(limit_bytes + 1 - len(content)):
            content += piece
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it has more than {limit_bytes} bytes", str(path))
    return bytes(content)


def put_aside(path: Path) -> Path:
    """Rename the entry at a path, file or folder, so that the name is free.

    Raises:
        OSError: The entry cannot be renamed.
    """
    aside = path.with_name(path.name + DAMAGED)
    remove(aside)
    path.rename(aside)
    flush_folder(path.parent)
    return aside


def share_path(path: Path, group: int, mode: int) -> None:
    """Give a folder or socket to a group, so that applications can use it.

    The group changes only if needed: the sandbox of the service forbids the call.

    Args:
        path: The folder or socket.
        group: Number of the group.
        mode: Permission bits.

    Raises:
        OSError: Another user owns the path.
    """
    if path.stat().st_gid != group:
        os.chown(path, -1, group)
    path.chmod(mode)


def remove(path: Path) -> None:
    """Remove the entry at a path, file or folder.

    Raises:
        OSError: The entry cannot be removed.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class StateFile(Generic[T]):
    """Versioned file.

    Args:
        path: Path of the file.
        form: Format of the content.
        write: Writes the file durably.
        is_kept: Keep the decoded content, for a file that is read again and again. Its value must
            be immutable.

    Attributes:
        path: Path of the file.
        trouble: Problem of the file, as a sentence; "" without a problem.
        is_sealed: Whether a newer edgepack wrote the file, so that the file must stay unchanged.
    """

    def __init__(
        self, path: Path, form: Format[T], *, write: Write = write_file, is_kept: bool = False
    ) -> None:
        self.path = path
        self.trouble = ""
        self.is_sealed = False
        self._form = form
        self._write = write
        self._unknown: dict[str, Any] = {}
        self._is_kept = is_kept
        self._decoded: tuple[bytes, T] | None = None
        self._fails_since: float | None = None

    def load(self) -> T | None:
        """Return the content; None when there is none, or none that can be used: see `trouble`.

        Raises:
            OSError: The disk cannot be read now; the file is left unchanged.
        """
        try:
            content = read_regular(self.path)
            if content is None:
                return None
            if self._decoded is not None and self._decoded[0] == content:
                self._fails_since = None
                return self._decoded[1]
            document = self._form.decode(content)
        except NewerVersionError as error:
            self.is_sealed = True
            self.trouble = f"{error.problem}; it is left as it is"
            log.warning("%s: %s", self.path, self.trouble)
            return None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and is_disk_fault(error) and not self._is_lasting():
                raise
            self.reject(error.strerror or str(error) if isinstance(error, OSError) else str(error))
            return None
        self._unknown, self._fails_since = document.unknown, None
        self._decoded = (content, document.value) if self._is_kept else None
        return document.value

    def load_when_disk_works(self) -> T | None:
        """Return the content like `load`; wait while the disk fails. For the agent's start."""
        has_told = False
        while True:
            try:
                return self.load()
            except OSError as error:
                if not has_told:
                    log.warning("%s: %s; trying again", self.path, error.strerror)
                has_told = True
                time.sleep(_RETRY_S)

    def _is_lasting(self) -> bool:
        """Return True if the file could not be read for so long that the file counts as damaged."""
        now = time.monotonic()
        if self._fails_since is None:
            self._fails_since = now
        return now - self._fails_since >= LASTING_FAULT_S

    def reject(self, because: str) -> None:
        """Put the unusable file aside."""
        title = self._form.title
        try:
            aside = put_aside(self.path)
            self.trouble = f"the {title} was damaged ({because}) and put aside as {aside.name}"
        except OSError as error:
            if self._fails_since is not None:
                raise  # The disk fails as a whole: that is no word about the file.
            self.trouble = f"the {title} is damaged ({because}) and cannot be put aside: {error}"
        log.warning("%s: %s", self.path, self.trouble)

    def save(self, value: T) -> None:
        """Write the value; unknown fields of the file stay.

        Raises:
            OSError: The file could not be written; the old content is unchanged.
        """
        if self.is_sealed:
            raise OSError(errno.EPERM, self.trouble, str(self.path))
        self._write(self.path, self._form.encode(value, self._unknown))
