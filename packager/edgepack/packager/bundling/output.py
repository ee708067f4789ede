"""Output of a build: path and name of the bundle, the work folder, and the single step that
gives the bundle its name.
"""

import errno
import fcntl
import glob
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepack.bundle.archive import pack, read_head
from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE
from edgepack.durable import flush_folder, flush_tree
from edgepack.errors import BuildError, BundleError

ARCHIVE_SUFFIX = ".edgepack"
_VERSION = re.compile(r"(\d+)\.(\d{1,3})\.(\d{1,3})")
_NAMED_OUTPUT = re.compile(r"(?P<name>.+?)-(?P<version>\d+(?:\.\d+)+[\w.+-]*)")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_LARGEST_RELEASE = 2**53
_OTHER_FILES = frozenset({".zip", ".tar", ".gz", ".tgz", ".onnx", ".ort", ".json", ".toml"})
"""What ends so is meant as a file, and a bundle's folder would get that name."""


def check_output(output: Path, *, replace: bool) -> None:
    """Reject an output that cannot be written or must not be replaced.

    Args:
        output: The bundle to be.
        replace: Whether a bundle that is there may be replaced; nothing else ever is.

    Raises:
        BuildError: The folder is missing or not writable, or something is there already.
    """
    if output.suffix.lower() in _OTHER_FILES:
        raise BuildError(
            f"a bundle is not an {output.suffix} file",
            found_in=f"-o {output}",
            remedy=f"-o {output.stem}{ARCHIVE_SUFFIX} for one file; a folder's name for a folder",
        )
    parent = output.parent
    if parent.exists() and not parent.is_dir():
        raise BuildError(f"{parent} is not a folder", remedy="name an output in a folder with -o")
    if not parent.is_dir():
        raise BuildError(
            f"the output's folder {parent} does not exist",
            remedy=f"mkdir -p {shlex.quote(str(parent))}",
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise BuildError(
            f"the output's folder {parent} is not writable", remedy="name another with -o"
        )
    if not os.path.lexists(output):
        return
    if not _is_bundle(output):
        raise BuildError(
            f"{output} is there already and is not a bundle", remedy="name another output with -o"
        )
    if not replace:
        raise BuildError(
            f"the bundle {output} is there already",
            remedy="--force replaces it; or name another output with -o",
        )


def read_output_name(output: Path) -> tuple[str, str]:
    """Return model name and version from the output's name, such as `ocr-1.2.0.edgepack`.

    Returns:
        Both, or two empty strings.
    """
    found = _NAMED_OUTPUT.fullmatch(output.name.removesuffix(ARCHIVE_SUFFIX))
    return (found["name"], found["version"]) if found else ("", "")


def check_name(name: str) -> str:
    """Return a model name that fits file names, topics and the manifest.

    Raises:
        BuildError: The name has other characters.
    """
    if not _NAME.fullmatch(name):
        raise BuildError(
            f"'{name}' is not a model name: it has letters, digits, '.', '_' and '-' only",
            remedy=f"--name {_NOT_IN_NAMES.sub('-', name).strip('-') or 'ocr-reader'}",
        )
    return name


def choose_release(version: str, release: int | None) -> int:
    """Return the release counter: the given counter, or `1.2.0` -> 1 002 000.

    Args:
        version: Version for people.
        release: A counter given by hand.

    Raises:
        BuildError: The version is not x.y.z with y and z below 1000, or the counter is too big.
    """
    if release is None:
        found = _VERSION.fullmatch(version)
        if not found:
            raise BuildError(
                f"no release counter follows from version {version!r}: only x.y.z with y and z "
                "below 1000 gives one",
                remedy="--version 1.2.0; or --release N, greater than that of every release before",
            )
        major, minor, patch = map(int, found.groups())
        release = major * 1_000_000 + minor * 1_000 + patch
    if not 0 <= release <= _LARGEST_RELEASE:
        raise BuildError(
            f"release {release} is not within 0 … {_LARGEST_RELEASE}", remedy="--release N"
        )
    return release


def _is_bundle(output: Path) -> bool:
    if output.is_symlink():
        return False
    if output.is_dir():
        return (output / MANIFEST_FILE).is_file() and (output / SIGNATURE_FILE).is_file()
    try:
        read_head(output)
    except BundleError:
        return False
    return True


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
