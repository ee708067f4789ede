"""One agent at a time on a state folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepack.agent.state.state_file import put_aside
from edgepack.errors import DeviceError

LOCK_FILE = "agent.lock"


@contextmanager
def lock_state_dir(state_dir: Path) -> Iterator[None]:
    """Holds the state folder, which is made when it is missing, while the block runs.

    The kernel lets go of the lock when the process ends, however it ends.

    Raises:
        DeviceError: Another agent holds it, or the folder cannot be made.
    """
    path = state_dir / LOCK_FILE
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            put_aside(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DeviceError(
            f"cannot use the state folder: {error.strerror}",
            found_in=str(state_dir),
            remedy="run the agent as a user who may write there, or change state_dir",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            raise DeviceError(
                f"another agent (process {holder}) uses this state folder",
                found_in=str(state_dir),
                remedy="stop it first, or give this agent a state_dir of its own",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_locked(state_dir: Path) -> bool:
    """Whether an agent runs on this state folder."""
    try:
        descriptor = os.open(state_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
