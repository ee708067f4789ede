"""Lock of the state folder: a single agent at a time, or a single command without an agent."""

import contextlib
import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from edgepack.agent.state.state_file import put_aside, remove
from edgepack.durable import disk_remedy, is_disk_fault
from edgepack.errors import DeviceError

log = logging.getLogger(__name__)

LOCK_FILE = "agent.lock"
LOCK_MODE = 0o600
TRY_S = 60.0
"""Longest time that a failing disk lets a try wait, seconds."""
UNPACKED = ".edgepack-unpacked-"
"""Begin of the name of a folder with a bundle that is being installed."""


COMMAND_S = 1.0
"""Seconds until an agent tries again that waits for the end of a command."""

Holder = Literal["agent", "command"]


class HeldByCommandError(DeviceError):
    """A command carries out its order in the state folder, and ends."""


@contextmanager
def lock_state_dir(state_dir: Path, holder: Holder = "agent") -> Iterator[None]:
    """Hold the state folder, which is created if missing, while the block runs.

    The kernel releases the lock at any end of the process. Anyone who may open the lock file may
    lock it, so only the agent's user may. Bundles that a killed `edgepack-agent install` unpacked
    are removed.

    Args:
        state_dir: The folder.
        holder: Kind of this process.

    Raises:
        HeldByCommandError: A command holds the folder.
        DeviceError: Another agent holds the folder, other users could, or the folder cannot be
            made.
    """
    path = state_dir / LOCK_FILE
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            put_aside(path)
        descriptor = _open_lock(state_dir, path)
    except OSError as error:
        raise _unusable(state_dir, error) from error
    try:
        try:
            _keep_strangers_out(state_dir, path, descriptor)
        except OSError as error:
            raise _unusable(state_dir, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _held(state_dir, os.pread(descriptor, 40, 0)) from error
        with contextlib.suppress(OSError):  # A hint for people; the disk may be full.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {holder}\n".encode(), 0)
        with contextlib.suppress(OSError):  # They do no harm, and the next lock tries again.
            for left in state_dir.glob(f"{UNPACKED}*"):
                with hold_folder(left) as is_held:
                    if is_held:
                        remove(left)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def hold_folder(folder: Path) -> Iterator[bool]:
    """Hold a folder, so that no agent removes the folder; yield False if another process does.

    Raises:
        OSError: The folder cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def _held(state_dir: Path, content: bytes) -> DeviceError:
    """Return the error that names the holder of the folder, by the content of the lock file."""
    pid, _, holder = content.decode(errors="replace").strip().partition(" ")
    if holder == "command":
        return HeldByCommandError(
            f"a command (process {pid}) carries out its order in this state folder",
            found_in=str(state_dir),
            remedy="wait until the command ends",
        )
    return DeviceError(
        f"another agent (process {pid or 'unknown'}) uses this state folder",
        found_in=str(state_dir),
        remedy="stop it first, or give this agent a state_dir of its own",
    )


def is_in_use(error: DeviceError) -> bool:
    """Return True if `lock_state_dir` failed because another process holds the folder."""
    return isinstance(error.__cause__, BlockingIOError)


def _unusable(state_dir: Path, error: OSError) -> DeviceError:
    cure = "run the agent as a user who may write there, or change state_dir"
    return DeviceError(
        f"cannot use the state folder: {error.strerror}",
        found_in=str(state_dir),
        remedy=disk_remedy(error) if is_disk_fault(error) else cure,
    )


def _open_lock(state_dir: Path, path: Path) -> int:
    """Open the lock file; if the disk cannot be written, open a file that can be locked without
    writing.

    Raises:
        OSError: Nothing can be opened.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, LOCK_MODE)
    except OSError as error:
        if not is_disk_fault(error):
            raise
    try:
        return os.open(path, os.O_RDONLY | flags)
    except FileNotFoundError:
        return os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | flags)


def _keep_strangers_out(state_dir: Path, path: Path, descriptor: int) -> None:
    folder, lock = state_dir.stat(), os.fstat(descriptor)
    if folder.st_mode & stat.S_IWOTH:
        raise DeviceError(
            "every user can write the state folder, and replace the serving release",
            found_in=str(state_dir),
            remedy=f"chmod o-w {state_dir}",
        )
    if lock.st_uid not in (0, os.geteuid(), folder.st_uid):
        raise DeviceError(
            f"the lock of the state folder belongs to user {lock.st_uid}, who could keep every "
            "agent out",
            found_in=str(path),
            remedy=f"rm {path}; the agent makes a new lock",
        )
    if stat.S_ISREG(lock.st_mode) and stat.S_IMODE(lock.st_mode) != LOCK_MODE:
        with contextlib.suppress(OSError):  # A read-only disk.
            os.fchmod(descriptor, LOCK_MODE)


@contextmanager
def lock_when_disk_works(
    state_dir: Path, retry_s: float, report_wait: Callable[[str, float], object] = lambda *_: None
) -> Iterator[None]:
    """Hold the state folder as `lock_state_dir` does; wait while the disk does not work, or a
    command carries out its order.

    Args:
        state_dir: The folder.
        retry_s: Seconds between two tries.
        report_wait: Gets the problem, and the seconds until the next try has ended.

    Raises:
        DeviceError: Another agent holds the folder, other users could, or the folder cannot be
            made.
    """
    with contextlib.ExitStack() as stack:
        said = ""
        while True:
            try:
                stack.enter_context(lock_state_dir(state_dir))
                break
            except DeviceError as error:
                is_held = isinstance(error, HeldByCommandError)
                cause = error.__cause__
                if not is_held and not (isinstance(cause, OSError) and is_disk_fault(cause)):
                    raise
                pause_s = min(retry_s, COMMAND_S) if is_held else retry_s
                if said != error.problem:
                    log.warning("%s (%s); trying again", error.problem, state_dir)
                    said = error.problem
                report_wait(error.problem, retry_s + TRY_S)
            time.sleep(pause_s)
        yield


def is_locked(state_dir: Path) -> bool | None:
    """Return True if an agent runs on this state folder; None when this user may not look."""
    try:
        descriptor = os.open(state_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return None
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
