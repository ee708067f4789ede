"""The two slots of the agent: environments side by side, and the pointers that the launcher reads.

    <folder>/a, <folder>/b   environments, each with the list of its digests
    <folder>/trial           slot to try at the next start; gone after a failed trial
    <folder>/tries           starts of the trial so far, counted by the launcher
    <folder>/active          committed slot; missing while the package's own environment serves
    <folder>/previous        slot that was active before

A pointer is a line: slot, SHA-256 of its list, and `broker` if the trial needs a connection. Each
change is one atomic step.
"""

import contextlib
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import read_regular
from edgepack.durable import flush_folder, flush_tree, write_file
from edgepack.errors import DeviceError
from edgepack.halt import NEVER, Halt

SLOTS_VARIABLE = "EDGEPACK_AGENT_SLOTS"
"""Variable of the launcher: the folder of the slots."""
SLOTS = ("a", "b")
DIGESTS_FILE, VERSION_FILE = "digests", "version"
TRIAL, TRIES, ACTIVE, PREVIOUS = "trial", "tries", "active", "previous"
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:~-]{0,99}")
_MAX_POINTER = 200
_MAX_LIST_BYTES = 16 * 1024 * 1024
MAX_TRIES = 3
"""Starts of a trial by the launcher."""
_BROKER = "broker"


class SlotState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a slot that a pointer names.

    Attributes:
        pointer: `trial`, `active` or `previous`.
        slot, version: The slot, and the version of its agent.
        tries: Starts of the trial so far.
        damage: First difference from the list of digests; "" without a difference.
    """

    pointer: str
    slot: str
    version: str
    tries: int
    damage: str


class AgentSlots:
    """The slots below a folder.

    Args:
        folder: Folder of the slots; made if missing.
        prefix: Environment of this process.
    """

    def __init__(self, folder: Path, prefix: Path = Path(sys.prefix)) -> None:
        self._folder = folder
        self.running = prefix.name if prefix.parent == folder and prefix.name in SLOTS else ""

    def running_version(self) -> str:
        """Return the version of this process: of its slot, or of the package's own environment."""
        return self._version_of(self.running) or metadata.version("edgepack")

    def active_version(self) -> str:
        """Return the version of the committed slot, or else of this process: a command runs from
        the package's own environment, and the agent from the slot.
        """
        return self._version_of(self._read(ACTIVE)[0]) or self.running_version()

    def install(self, archive: Path, version: str, halt: Halt = NEVER) -> Path:
        """Fill the slot that neither runs nor is active, and return its folder.

        No pointer names the slot before its last byte is written, so a power cut leaves all as
        before.

        Args:
            archive: Verified archive of the environment.
            version: Version of the environment.
            halt: Ends the work early.

        Raises:
            BundleError: The archive is hostile, damaged, or of another Python.
            DeviceError: There is not enough free space; nothing was changed.
            OSError: The disk is full or broken.
            HaltedError: Because of `halt`.
        """
        # Loaded where it is needed: an agent installs rarely, and runs for months.
        from edgepack.agent.self_update.environment_archive import (
            measure_environment,
            unpack_environment,
        )

        self._folder.mkdir(exist_ok=True)
        free = [one for one in SLOTS if one != self.running]
        slot = min(free, key=lambda one: one == self._read(ACTIVE)[0])
        target = self._folder / slot
        self._check_room(measure_environment(archive, halt), target)
        for name in (TRIAL, ACTIVE, PREVIOUS):
            if self._read(name)[0] == slot:
                self._remove(name)
        if target.exists():
            shutil.rmtree(target)
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, target, ignore_errors=True)
            target.mkdir()
            digests = unpack_environment(archive, target, halt)
            python = Path(sys.executable).resolve()
            own = {VERSION_FILE: f"{version}\n", "pyvenv.cfg": f"home = {python.parent}\n"}
            for name, text in own.items():
                (target / name).write_text(text)
                digests[name] = hashlib.sha256(text.encode()).hexdigest()
            (target / "bin").mkdir()
            (target / "bin/python").symlink_to(python)
            lines = (f"{digest}  {path}\n" for path, digest in sorted(digests.items()))
            (target / DIGESTS_FILE).write_text("".join(lines))
            flush_tree(target)
            flush_folder(self._folder)
            undo.pop_all()
        return target

    def begin_trial(self, slot: str, *, needs_broker: bool) -> None:
        """Let the launcher start a slot from now on, a few times, until `commit` or `revert`.

        Args:
            slot: Slot that `install` filled.
            needs_broker: Whether the new agent must connect to the broker before its commit.

        Raises:
            OSError: The disk does not work.
        """
        digest = hashlib.sha256((self._folder / slot / DIGESTS_FILE).read_bytes()).hexdigest()
        self._remove(TRIES)
        need = f" {_BROKER}" if needs_broker else ""
        write_file(self._folder / TRIAL, f"{slot} {digest}{need}\n".encode())

    @property
    def needs_broker(self) -> bool:
        """True if the slot on trial must connect to the broker before its commit."""
        return _BROKER in self._read(TRIAL)

    def commit(self) -> None:
        """Make the running slot the active slot; calling again changes nothing.

        Raises:
            DeviceError: This process does not run from the slot on trial.
            OSError: The disk does not work.
        """
        if self.running and self._read(TRIAL)[0] == self.running:
            before = self._read(ACTIVE)
            if before[0] and before[0] != self.running:
                write_file(self._folder / PREVIOUS, f"{' '.join(before[:2])}\n".encode())
            else:
                self._remove(PREVIOUS)
            (self._folder / TRIAL).replace(self._folder / ACTIVE)
            flush_folder(self._folder)
        elif not self.running or self._read(ACTIVE)[0] != self.running:
            raise DeviceError("this agent is not on trial", found_in=str(self._folder / TRIAL))

    def revert(self, version: str) -> None:
        """Let the launcher start the agent from before a version, also after its commit.

        Args:
            version: Version to leave.

        Raises:
            OSError: The disk does not work.
        """
        self._remove(TRIAL)
        if self._version_of(self._read(ACTIVE)[0]) != version:
            return
        if self._read(PREVIOUS)[0]:
            (self._folder / PREVIOUS).replace(self._folder / ACTIVE)
            flush_folder(self._folder)
        else:
            self._remove(ACTIVE)

    @property
    def trouble(self) -> str:
        """Reason why the launcher did not start the active slot; "" if it did, or a trial."""
        active = self._read(ACTIVE)[0]
        is_right = bool(self.running) and self.running in (active, self._read(TRIAL)[0])
        if not active or is_right:
            return ""
        version = self._version_of(active) or "unknown"
        return (
            f"slot {active} of the agent (version {version}) is damaged, or of another user; "
            f"version {self.running_version()} runs in its place"
        )

    def examine(self) -> Iterator[SlotState]:
        """Yield the state of each slot that a pointer names; each file is read."""
        for pointer in (TRIAL, ACTIVE, PREVIOUS):
            slot, digest = self._read(pointer)[:2]
            if slot:
                yield SlotState(
                    pointer=pointer,
                    slot=slot,
                    version=self._version_of(slot) or "unknown",
                    tries=self._tries() if pointer == TRIAL else 0,
                    damage=_find_damage(self._folder / slot, digest),
                )

    def _tries(self) -> int:
        """Return the starts of the trial so far."""
        try:
            text = (self._folder / TRIES).read_text(errors="replace").strip()
        except OSError:
            return 0
        return int(text) if text.isdecimal() and len(text) < 9 else 0

    def _check_room(self, needed_bytes: int, target: Path) -> None:
        """Check the free space, which includes the slot that is replaced.

        Raises:
            DeviceError: There is not enough.
        """
        disk = os.statvfs(self._folder)
        taken = sum(512 * path.lstat().st_blocks for path in target.rglob("*"))
        free_bytes = disk.f_bavail * disk.f_frsize + taken
        if needed_bytes > free_bytes:
            raise DeviceError(
                f"no room for another environment of the agent: it needs {needed_bytes} bytes, "
                f"{free_bytes} are free",
                found_in=str(self._folder),
                remedy="free disk space",
            )

    def _read(self, name: str) -> list[str]:
        """Return the words of a pointer; two empty words if missing or malformed."""
        try:
            with (self._folder / name).open("rb") as file:
                words = file.read(_MAX_POINTER).decode("ascii", "replace").split()
        except FileNotFoundError:
            return ["", ""]
        return words if len(words) in (2, 3) and words[0] in SLOTS else ["", ""]

    def _version_of(self, slot: str) -> str:
        if not slot:
            return ""
        try:
            text = (self._folder / slot / VERSION_FILE).read_text(errors="replace").strip()
        except OSError:
            return ""
        return text if _VERSION.fullmatch(text) else ""

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._folder / name).unlink()
            flush_folder(self._folder)


def _find_damage(folder: Path, digest: str) -> str:
    """Return the first difference of a slot from its list of digests; "" without a difference."""
    try:
        content = read_regular(folder / DIGESTS_FILE, limit_bytes=_MAX_LIST_BYTES) or b""
        if hashlib.sha256(content).hexdigest() != digest:
            return f"{DIGESTS_FILE} differs"
        for line in content.decode().splitlines():
            expected, _, path = line.partition("  ")
            with (folder / path).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    return f"{path} differs"
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}"
    except ValueError:
        return f"{DIGESTS_FILE} is malformed"
    return ""


def find_agent_slots(
    read_variable: Callable[[str], str | None] = os.environ.get,
) -> AgentSlots | None:
    """Return the slots that the launcher names; None if no launcher started this process."""
    folder = read_variable(SLOTS_VARIABLE)
    return AgentSlots(Path(folder)) if folder and Path(folder).is_absolute() else None
