"""Writing files so that a power cut leaves the old content or the new, never a mixture."""

import errno
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_DISK_FAULTS = frozenset(
    {
        errno.EIO,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.ENOMEM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EBUSY,
    }
)


def is_disk_fault(error: OSError) -> bool:
    """Return whether an error says nothing about a file's content, and may pass.

    The disk is full, read-only or fails, or the process has no memory or descriptors left.
    """
    return error.errno in _DISK_FAULTS


def is_full(error: OSError) -> bool:
    """Check whether a disk, or a quota, has no space left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_remedy(error: OSError) -> str:
    """Return what a person can do about a fault of the disk."""
    return "free disk space" if is_full(error) else "check the disk and its file system"


def log_fault(log: logging.Logger, said: str, error: OSError) -> None:
    """Log an error: a fault of the disk in a line, any other error with its traceback."""
    log.warning("%s: %s", said, error, exc_info=not is_disk_fault(error))


def write_file(path: Path, content: bytes, *, mode: int = 0o644, lasting: bool = True) -> None:
    """Replace the content of a file in an atomic, durable step.

    The bytes go to a temporary file in the same folder, which is flushed to the disk and
    then renamed over `path`; the folder is flushed last, so that the rename survives too.

    Args:
        path: The file; its folder must exist.
        content: The whole new content.
        mode: Permission bits of the file.
        lasting: Flush the file to the disk. A file that lives only as long as this process needs no
            flush, nor does a file that `flush_tree` flushes later.

    Raises:
        OSError: The disk is full or the folder is not writable; `path` is then unchanged.
    """
    with replacing(path, mode=mode, lasting=lasting) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, mode: int = 0o644, lasting: bool = True) -> Iterator[BinaryIO]:
    """Give a file to write to that takes the place of `path`, durably, when the block ends.

    The function is `write_file` for content that is too long for memory. When the block raises,
    `path` is unchanged.

    Raises:
        OSError: The disk is full or the folder is not writable; `path` is then unchanged.
    """
    handle, temporary_name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(temporary_name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
            if lasting:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):  # The first error says more.
            temporary.unlink(missing_ok=True)
        raise
    if lasting:
        flush_folder(path.parent)


def make_private(path: Path) -> None:
    """Restrict a file or folder to its owner; a missing path is ignored.

    Raises:
        OSError: Another user owns the path.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if mode & 0o077:
        path.chmod(mode & 0o700)


def flush_folder(folder: Path) -> None:
    """Make earlier renames and removals in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Make everything in a folder survive a power cut: regular files, and their names."""
    for root, _, names in os.walk(folder):
        for name in names:
            with (Path(root) / name).open("rb") as file:
                os.fsync(file.fileno())
        flush_folder(Path(root))
