"""The work folder of a build, and the single step that gives the bundle its name."""

import errno
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepack.bundle.archive import pack
from edgepack.durable import flush_folder, flush_tree
from edgepack.errors import BuildError


@contextmanager
def work_folder(output: Path) -> Iterator[Path]:
    """Yield a hidden folder next to the output, on the same file system, and delete the folder at
    the end.

    Remains of a killed build are removed: only a single build at a time uses an output.

    Raises:
        BuildError: Another build of this output is running.
    """
    prefix = f".{output.name}.work-"
    with _only_one(output):
        for left in output.parent.glob(f"{glob.escape(prefix)}*"):
            shutil.rmtree(left)
        work = Path(tempfile.mkdtemp(prefix=prefix, dir=output.parent))
        try:
            yield work
        finally:
            shutil.rmtree(work)


@contextmanager
def _only_one(output: Path) -> Iterator[None]:
    """Hold a lock on the output's name, which ends with the process, however that ends."""
    path = output.parent / f".{output.name}.lock"
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    if not _take(path, file):
        os.close(file)
        raise BuildError(
            f"another build of {output.name} is running",
            found_in=str(output.parent),
            remedy="wait for it to end, or name another output with -o",
        )
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def _take(path: Path, file: int) -> bool:
    """Lock an open file, which must still have its name: the former owner may just end."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(path.stat(), os.fstat(file))
    except (BlockingIOError, FileNotFoundError):
        return False


def publish(folder: Path, output: Path, work: Path) -> None:
    """Give the bundle its name, after a flush to the disk.

    A replaced bundle is moved aside first, then removed.
    """
    if output.suffix == ".edgepack":
        pack(folder, output)
        return
    flush_tree(folder)
    if output.exists():
        output.rename(work / "replaced")
    folder.rename(output)
    flush_folder(output.parent)


def disk_error(error: OSError, output: Path) -> BuildError:
    """Return the error of a build for an error of the file system."""
    if error.errno == errno.ENOSPC:
        free = shutil.disk_usage(output.parent).free
        return BuildError(
            f"the disk was full; nothing was written to {output.name}, and without what the build "
            f"had there {free:,} bytes are free",
            found_in=str(error.filename or output.parent),
            remedy="free more than that, or name an output on another disk with -o",
        )
    reason = error.strerror or os.strerror(error.errno or 0)
    return BuildError(
        f"the build cannot read or write a file: {reason}",
        found_in=str(error.filename or output),
        remedy="check the path and its permissions",
    )
