"""Registry of the processes that hold a model: a locked file per process and model.

A process registers before it opens a release, writes a heartbeat while it holds the release, and
removes the file when it closes the model. The kernel releases the lock of a process that dies, so a
file without a lock tells of a death, also after `kill -9`.

A process marks running inferences in its file (`running_marks`), and a signal that ends it by
default (`ended_by_signal`). Only a release that a process ran or opened at its death counts as
having died: an end between two inferences, or by SIGTERM, is no fault of a model.

The files lie in the runtime directory (tmpfs), so that heartbeats write nothing to the disk. A
process that cannot reach the runtime directory registers in the state folder.

The agent registers applications that report over the agent's socket (`telemetry.applications`).
"""

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from edgepack.agent.state.ended_by_signal import note_in, note_no_more_in
from edgepack.agent.state.running_marks import (
    PLACES,
    RUNNING,
    UNKNOWN_MARKS,
    RunningMarks,
)
from edgepack.agent.state.slot_lock import SlotLock, lock_new_file
from edgepack.agent.state.state_file import (
    RUNTIME_LINK,
    open_shared,
    put_aside,
    remove,
    share_path,
)
from edgepack.versions import Format, NewerVersionError, Version

HOLDERS_FOLDER = "holders"
FOLDER_MODE = 0o2775
BEAT_BYTES = 8192
"""Bytes of the heartbeat, padded with spaces; more than two escaped `MAX_TEXT` take."""
FILE_BYTES = BEAT_BYTES + PLACES
"""Bytes of a file with marks. A text behind the marks notes that a signal ended the process."""
MAX_TEXT = 500
BEAT_S = 1.0
"""Seconds between two heartbeats."""
KEPT_S = 3600.0
"""Deaths and healed faults of the last hour are remembered."""
MAX_DEATHS = 1000
_READS = 3
_PROXY = ".proxy.json"
"""End of the names of files that the agent locks in place of other processes."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat of a process that holds a model. Times are of the monotonic clock, in seconds.

    Attributes:
        boot: Boot of the device: monotonic times of another boot mean nothing.
        pid: The process, in its own namespace.
        model: The model's name.
        digest: The release that serves in the process; "" before the first release is open.
        variant: The variant that serves in the process.
        opening: The release that the process opens now; "" for none.
        beat_at: Time of the heartbeat.
        every_s: Seconds until the next heartbeat.
        running_since: Start of the oldest running inference; 0 without one.
        checked: Golden samples that ran again in the process.
        other: Those of them with other bits than at first in the process.
        wrong: How golden samples still differ after the release was opened again; "" if equal.
        healed: How golden samples differed until the release was opened again; "" without a case.
        healed_at: Time of the last case.
    """

    boot: str
    pid: int
    model: str
    digest: str = ""
    variant: str = ""
    opening: str = ""
    beat_at: float = 0.0
    every_s: float = BEAT_S
    running_since: float = 0.0
    checked: int = 0
    other: int = 0
    wrong: str = ""
    healed: str = ""
    healed_at: float = 0.0

    @property
    def releases(self) -> frozenset[str]:
        """Releases that the process may owe its end to."""
        return frozenset({self.digest, self.opening}) - {""}


HELD = Format("heartbeat", Held, Version(1, 0))


class Death(NamedTuple):
    """End of a process that did not close its model.

    Attributes:
        at: When the agent saw the death, monotonic clock, seconds.
        held: The last heartbeat.
        others: Heartbeats of other releases to which the same process may owe its end.
    """

    at: float
    held: Held
    others: tuple[Held, ...] = ()


class Holders(msgspec.Struct, frozen=True, kw_only=True):
    """Processes that hold a model of the device.

    Attributes:
        held: The last heartbeats of living processes.
        deaths: Deaths of the last hour, the newest last.
        crowd: Processes that want each core, 1 or more: all work may take so many times as long.
    """

    held: tuple[Held, ...] = ()
    deaths: tuple[Death, ...] = ()
    crowd: float = 1.0


def holders_folders(state_dir: Path) -> tuple[Path, Path]:
    """Return the folders of the registry: in the runtime directory, and in the state folder."""
    return state_dir / RUNTIME_LINK / HOLDERS_FOLDER, state_dir / HOLDERS_FOLDER


def open_holders(state_dir: Path) -> str:
    """Create the registry's folders, writable by the state folder's group. For the agent.

    Returns:
        Why processes cannot register, as a sentence; "" without a problem.
    """
    for folder in holders_folders(state_dir):
        try:
            if not folder.parent.exists() and folder.parent != state_dir:
                continue  # There is no runtime directory.
            if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir()):
                put_aside(folder)
            folder.mkdir(exist_ok=True)
            share_path(folder, state_dir.stat().st_gid, FOLDER_MODE)
            for path in folder.glob("*.new"):
                remove(path)
        except OSError as error:
            return f"processes cannot register the models they hold: {error.strerror} ({folder})"
    return ""


def boot_id() -> str:
    """Return the random id of this boot; "" if the system has none."""
    with contextlib.suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


class Registration:
    """Registration of a process for a model. A folder that cannot be written disables it.

    Args:
        state_dir: The agent's state folder.
        model: The model's name.
        pid: Another process, which this process watches; None registers this process.

    Attributes:
        marks: Marks of the inferences that run in this process.
    """

    def __init__(self, state_dir: Path, model: str, *, pid: int | None = None) -> None:
        self._owner = os.getpid()
        self._is_proxy = pid is not None
        self.marks = RunningMarks()
        self._held = Held(boot=boot_id(), pid=pid or self._owner, model=model)
        self._name = f"{self._held.pid}-{secrets.token_hex(8)}{_PROXY if pid else '.json'}"
        self._runtime, self._disk = holders_folders(state_dir)
        self._path: Path | None = None
        self._lock: SlotLock | None = None
        self._beat_at = 0.0
        self._length = 0
        self._register(self._runtime)
        if self._lock is None:
            with contextlib.suppress(OSError):
                self._disk.mkdir(exist_ok=True)
            self._register(self._disk)

    def update(self, **changes: object) -> None:
        """Change the heartbeat, and write the heartbeat at once."""
        self._held = msgspec.structs.replace(self._held, **changes)
        self._write()

    def beat(self, **changes: object) -> None:
        """Change the heartbeat, and write the heartbeat if due."""
        self._held = msgspec.structs.replace(self._held, **changes)
        if time.monotonic() - self._beat_at >= BEAT_S:
            self._write()

    def close(self) -> None:
        """Remove the registration: this process does not hold the model any more."""
        lock, self._lock = self._lock, None
        if lock is not None and self._path is not None:
            note_no_more_in(self._path)
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            lock.release()

    def note_death(self) -> None:
        """Leave the registration to the watch: the watched process died with the model."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _register(self, folder: Path) -> None:
        """Register in a folder that can be written, instead of where this process is registered."""
        path, content = folder / self._name, self._encode()
        with contextlib.suppress(OSError):
            marks = b"" if self._is_proxy else UNKNOWN_MARKS
            lock = lock_new_file(path, content.ljust(len(marks) and BEAT_BYTES) + marks)
            self.close()
            self._path, self._lock = path, lock
            if not self._is_proxy:
                self.marks.keep_in(path, BEAT_BYTES, is_memory=folder == self._runtime)
                note_in(path)

    def _write(self) -> None:
        self._beat_at = time.monotonic()
        if self._lock is None or self._owner != os.getpid():
            return
        if self._path != self._runtime / self._name:
            self._register(self._runtime)  # The agent may have started after this process.
        with contextlib.suppress(OSError):
            self._lock.overwrite(self._encode())

    def _encode(self) -> bytes:
        """Return the heartbeat, padded so that no older longer text shows behind."""
        self._held = msgspec.structs.replace(self._held, beat_at=time.monotonic())
        content = HELD.encode(self._held)
        self._length = max(self._length, len(content))
        return content.ljust(self._length)[:BEAT_BYTES]


def remove_stale_proxies(state_dir: Path) -> None:
    """Remove what a killed agent registered for processes that still live. For a starting agent.

    The registrations of processes that ended meanwhile stay: the watch counts the deaths.
    """
    for folder in holders_folders(state_dir):
        for path in folder.glob(f"*{_PROXY}"):
            pid = path.name.partition("-")[0]
            with contextlib.suppress(OSError):
                if not pid.isdecimal() or Path(f"/proc/{pid}").exists():
                    remove(path)


class _Read(NamedTuple):
    """Heartbeat that was read.

    Attributes:
        held: The heartbeat.
        is_suspect: Whether the process ran or opened the release, or notes no inferences.
        was_ended: Whether a signal ended the process by its default action.
    """

    held: Held
    is_suspect: bool = True
    was_ended: bool = False


class HolderWatch:
    """View of the agent on the registry; a single watch per device removes the files of the dead.

    Args:
        state_dir: The agent's state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folders = holders_folders(state_dir)
        self._boot = boot_id()
        self._known: dict[str, Held] = {}
        self._deaths: deque[Death] = deque(maxlen=MAX_DEATHS)

    def look(self) -> Holders:
        """Return living processes, and the deaths of the last hour."""
        now = time.monotonic()
        known = {}
        dead: list[_Read] = []
        ended: set[int] = set()
        for name, read, is_alive in self._files():
            if read.was_ended:
                ended.add(read.held.pid)
            if is_alive:
                known[name] = read.held
            elif read.held.boot == self._boot:
                dead.append(read)
        suspects = [one.held for one in dead if one.is_suspect and one.held.pid not in ended]
        for held in suspects:
            beside = (one for one in suspects if one.pid == held.pid and one is not held)
            self._deaths.append(Death(now, held, tuple(beside)))
        self._known = known
        while self._deaths and now - self._deaths[0].at > KEPT_S:
            self._deaths.popleft()
        return Holders(
            held=tuple(known.values()), deaths=tuple(self._deaths), crowd=_count_per_core()
        )

    def _files(self) -> Iterator[tuple[str, "_Read", bool]]:
        """Yield the registrations, and remove those of the dead."""
        paths: list[Path] = []
        for folder in self._folders:
            with contextlib.suppress(OSError):
                paths += sorted(folder.glob("*.json"))
        for path in paths:
            try:
                is_alive = _is_locked(path)
                read = self._read(path)
                if not is_alive:
                    remove(path)
            except OSError:
                continue
            if read is not None:
                yield path.name, read, is_alive

    def _read(self, path: Path) -> "_Read | None":
        """Return a heartbeat; the last one if the file was being written at each try.

        Raises:
            OSError: The file is gone or may not be read.
        """
        for _ in range(_READS):
            content, size_bytes = _read_first(path)
            with contextlib.suppress(ValueError, NewerVersionError):
                held = HELD.decode(content[:BEAT_BYTES]).value
                names = (held.boot, held.model, held.digest, held.variant, held.opening)
                texts = (*names, held.wrong, held.healed)
                if max(map(len, texts)) > MAX_TEXT:
                    return None
                has_marks = len(content) == FILE_BYTES
                is_suspect = bool(held.opening) or not has_marks or RUNNING in content[BEAT_BYTES:]
                return _Read(held, is_suspect, size_bytes > FILE_BYTES)
        known = self._known.get(path.name)
        return _Read(known) if known is not None else None


def _read_first(path: Path) -> tuple[bytes, int]:
    """Return the first bytes of a registration, and the size of its file.

    Raises:
        OSError: The file is gone, is not regular, or may not be read.
    """
    file = open_shared(path)
    if file is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        return os.pread(file, FILE_BYTES, 0), os.fstat(file).st_size
    finally:
        os.close(file)


def _count_per_core() -> float:
    """Return the load average of the last minute for each core, at least 1; 1 if unknown."""
    with contextlib.suppress(OSError):
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    return 1.0


def _is_locked(path: Path) -> bool:
    """Check whether a process holds a registration.

    Raises:
        OSError: The file is gone, is not regular, or may not be read.
    """
    file = open_shared(path)
    if file is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if not os.fstat(file).st_nlink:  # The process closed the model meanwhile.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
