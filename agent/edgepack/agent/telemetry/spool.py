"""The spool: files with statistics of inferences, from serving processes to the agent.

Each process keeps two small files per served release in a runtime directory (tmpfs), to which
`<state_dir>/latency` leads: one that the process rewrites every few seconds, and one in memory with
the counts at this moment (`counts.py`). The counts only grow, so the agent may read a file at any
time, and a process never needs to know whether the agent runs. A process that cannot reach the
runtime directory, in a container for example, rewrites the first file in `latency-disk` of the
state folder.
"""

import contextlib
import errno
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import (
    RUNTIME_LINK,
    put_aside,
    read_shared,
    remove,
    share_path,
)
from edgepack.agent.telemetry.counts import Counts, is_in_use, read_counts
from edgepack.agent.telemetry.shadowed import Shadowed, check_shadowed
from edgepack.bundle.features import FeatureSum, check_sums
from edgepack.durable import write_file
from edgepack.errors import TransferError
from edgepack.versions import Format, Version
from edgepack.wire import histogram
from edgepack.wire.telemetry import Histogram

DISK_FOLDER = "latency-disk"
SPOOL_MODE = 0o2775
COUNTS = ".counts"
RUNTIME_VARIABLES = ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR")
"""Variables that name runtime directories: of a systemd service, and of a user's session."""
RUNTIME_FOLDERS = (Path("/run"), Path("/dev/shm"))
"""Where the spool lies unless a setting or `RUNTIME_VARIABLES` name a folder: the first that the
agent may write. Without any of them, processes write to `DISK_FOLDER` alone."""

log = logging.getLogger(__name__)
MAX_SPOOL_BYTES = 256 * 1024
MAX_NAME = 400


class Spooled(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a process for a model since the process opened the model.

    Attributes:
        token: Random id of the process's record: another token under the same file name is new.
        pid: The process.
        model: The model's name.
        digest, version, variant, provider: Release that ran.
        since, written_at: When counting began, and when this was written; seconds since the epoch.
        latency: Of all its inferences so far.
        failures: Inferences that raised, but for mistakes of the application.
        not_finite: Inferences with NaN or infinity in an output that has none in the golden
            samples, although all inputs were finite.
        bad_inputs: The same with NaN or infinity in an input.
        bad_input: The last such input; "" for none.
        first_tokens: Times to the first token, of inferences that wrote a text.
        is_final: Whether the process closed the model: the file will not change any more.
        troubles: Why the process could not follow the pointer to a newer model, a sentence each.
        memory_bytes: Memory of the process at the write; 0 if unknown, or if the process held
            another release of the model, too.
        features: Sums of features, of the inferences that were sketched.
        shadowed: Inferences that the release before computed, too.
    """

    token: str
    pid: int
    model: str
    digest: str
    version: str = ""
    variant: str
    provider: str
    since: float
    written_at: float
    latency: Histogram
    failures: int = 0
    not_finite: int = 0
    bad_inputs: int = 0
    bad_input: str = ""
    first_tokens: Histogram = msgspec.field(default_factory=histogram.empty)
    is_final: bool = False
    troubles: tuple[str, ...] = ()
    memory_bytes: int = 0
    features: tuple[FeatureSum, ...] = ()
    shadowed: Shadowed = Shadowed()


SPOOLED = Format("latency file", Spooled, Version(1, 0))


def spool_folder(state_dir: Path) -> Path:
    """Return the folder of spool files, which may be a link to a runtime directory."""
    return state_dir / RUNTIME_LINK


def spooled_files(state_dir: Path) -> dict[str, Path]:
    """Return the spool files by name."""
    folders = (state_dir / DISK_FOLDER, spool_folder(state_dir))
    return {path.name: path for folder in folders for path in sorted(folder.glob("*.json"))}


def open_spool(state_dir: Path, runtime_dir: str = "") -> str:
    """Create the spool folders, writable by the state folder's group. For the agent.

    Applications usually run as other users than the agent; applications that report statistics
    belong to that group.

    Args:
        state_dir: The agent's state folder.
        runtime_dir: Folder for the spool; "" takes the first usable runtime directory.

    Returns:
        Why applications cannot write, as a sentence; "" without a problem.
    """
    link = spool_folder(state_dir)
    try:
        group = state_dir.stat().st_gid
        _make_shared(state_dir / DISK_FOLDER, group)
        for folder in _runtime_folders(state_dir, runtime_dir):
            try:
                _make_shared(folder, group)
                if not link.is_symlink() or link.readlink() != folder:
                    if os.path.lexists(link):
                        put_aside(link)
                    link.symlink_to(folder)
            except OSError as error:
                trouble = error
                continue
            return ""
        if runtime_dir:
            raise trouble
        log.warning("no runtime directory: processes hand over counts in %s", DISK_FOLDER)
        if os.path.lexists(link):
            put_aside(link)
    except OSError as error:
        return (
            "processes cannot hand over what inferences took: "
            f"{error.strerror} ({error.filename or link})"
        )
    return ""


def _runtime_folders(state_dir: Path, runtime_dir: str) -> list[Path]:
    """Return the folders to try; first the present folder, which may have counts."""
    if runtime_dir:
        return [Path(runtime_dir)]
    named = ":".join(os.environ.get(variable, "") for variable in RUNTIME_VARIABLES).split(":")
    name = f"edgepack-{hashlib.sha256(bytes(state_dir.resolve())).hexdigest()[:16]}"
    folders = [parent / name for parent in (*map(Path, filter(None, named)), *RUNTIME_FOLDERS)]
    with contextlib.suppress(OSError):
        present = spool_folder(state_dir).readlink()
        if present.name == name:  # A command has not the variables of the service.
            folders.insert(0, present)
    return folders


def _make_shared(folder: Path, group: int) -> None:
    """Make a folder for processes of a group.

    Raises:
        OSError: The folder cannot be made, or belongs to another user.
    """
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
        put_aside(folder)
    folder.mkdir(exist_ok=True)
    if folder.lstat().st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "another user owns the folder", str(folder))
    share_path(folder, group, SPOOL_MODE)


def write_spooled(state_dir: Path, spooled: Spooled, counts: Counts | None = None) -> Path:
    """Write a process's counts over its previous counts.

    Args:
        state_dir: The agent's state folder.
        spooled: Statistics of the process.
        counts: Counts to share with the agent from now on.

    Raises:
        OSError: No folder can be written.
    """
    name = f"{spooled.pid}-{spooled.digest[:16]}-{spooled.token}.json"
    path = spool_folder(state_dir) / name
    try:
        if counts is not None:
            counts.share(path.with_suffix(COUNTS))
        write_file(path, SPOOLED.encode(spooled), lasting=False)
    except OSError:
        path = state_dir / DISK_FOLDER / name
        path.parent.mkdir(exist_ok=True)
        write_file(path, SPOOLED.encode(spooled), lasting=False)
    return path


def remove_spooled(path: Path) -> None:
    """Remove a spool file, with its counts.

    Raises:
        OSError: A file cannot be removed.
    """
    remove(path)
    remove(path.with_suffix(COUNTS))


def read_spooled(path: Path) -> Spooled:
    """Read and check a spool file; any process of the device may have written the file.

    Raises:
        TransferError: The file is malformed, or its numbers contradict each other.
        NewerVersionError: A newer edgepack wrote the file.
        OSError: The file is too long, not regular, or cannot be read.
    """
    content = read_shared(path, limit_bytes=MAX_SPOOL_BYTES)
    try:
        spooled = SPOOLED.decode(content or b"").value
    except ValueError as error:
        raise TransferError(f"malformed spool file: {error}", found_in=str(path)) from error
    if (counted := read_counts(path.with_suffix(COUNTS))) is not None:
        spooled = msgspec.structs.replace(spooled, **counted._asdict())
    histogram.check(spooled.latency)
    histogram.check(spooled.first_tokens)
    counts = (spooled.failures, spooled.not_finite, spooled.bad_inputs, spooled.memory_bytes)
    if min(counts) < 0 or spooled.pid <= 0:
        raise TransferError("malformed spool file: a count is negative", found_in=str(path))
    if len(spooled.bad_input) > MAX_NAME:
        raise TransferError("malformed spool file: an input's name is long", found_in=str(path))
    check_sums(spooled.features, found_in=str(path))
    check_shadowed(spooled.shadowed, found_in=str(path))
    return spooled


def is_over(path: Path, spooled: Spooled, is_running: Callable[[int], bool]) -> bool:
    """Return whether a process will count no more: a process that closed the model, or ended."""
    if spooled.is_final:
        return True
    in_use = is_in_use(path.with_suffix(COUNTS))
    return not (is_running(spooled.pid) if in_use is None else in_use)
