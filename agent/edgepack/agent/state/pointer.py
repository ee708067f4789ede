"""The pointer to the serving release of a model: a small file, switched in an atomic step.

`models/<name>/active.json` in the state folder is read by everything that serves the model, and
written by the agent alone. A reader finds the old pointer or the new pointer, never a mixture and,
once a model was installed, always a pointer.
"""

import contextlib
from pathlib import Path

import msgspec

from edgepack.agent.state.models import model_folder, model_names
from edgepack.agent.state.state_file import StateFile, Write, read_regular
from edgepack.durable import flush_folder, write_file
from edgepack.errors import DeviceError
from edgepack.versions import Format, NewerVersionError, Version
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Choice

POINTER_FILE = "active.json"


class Shadow(msgspec.Struct, frozen=True, kw_only=True):
    """A release that computes some real inferences next to the serving release, to compare both.

    Attributes:
        bundle: The previous release during a soak; the next release before a switch.
        variant: Which of its variants runs.
        is_next: Whether it is the next release.
        share: Share of inferences to repeat, 0..1.
        busy_share: Maximum share of time with a running shadow inference, 0..1.
        memory_bytes: Memory limit of the shadow process.
        spacing_s: Seconds between two inferences that count as independent; 0 estimates the time
            from the inputs.
        slow_times: Ratio of durations above which an inference of the next release is slow; 0 for
            none.
        sequence: The order that is decided. A repeated order starts the release again.
    """

    bundle: BundleRef
    variant: str
    is_next: bool = False
    share: float
    busy_share: float
    memory_bytes: int
    spacing_s: float = 0.0
    slow_times: float = 0.0
    sequence: int = 0


class ActivePointer(msgspec.Struct, frozen=True, kw_only=True):
    """Pointer to the serving release.

    Attributes:
        bundle: The bundle; its digest names the slot.
        choice: The running variant, and the reason; `choice.chosen` is never "".
        since: Time of the switch, seconds since the epoch.
        committed: Whether the release has passed its soak.
        shadow: Shadow settings before a switch or during a soak; None without shadow mode.
        basis: Versions and settings that the choice was based on (`runtime.basis`); empty if
            unknown.
        base: Name of the model that an adapter belongs to; "" for a model that runs by itself.
    """

    bundle: BundleRef
    choice: Choice
    since: float
    committed: bool
    shadow: Shadow | None = None
    basis: dict[str, str] = {}
    base: str = ""

    @property
    def digest(self) -> str:
        """The slot's name: the bundle's digest."""
        return self.bundle.digest


POINTER = Format("pointer to the active model", ActivePointer, Version(1, 0))


def pointer_path(state_dir: Path, name: str) -> Path:
    """Return the path of a model's pointer.

    Raises:
        ValueError: No model can have that name.
    """
    return model_folder(state_dir, name) / POINTER_FILE


def read_pointer(state_dir: Path, name: str) -> ActivePointer | None:
    """Return the pointer of a model for an application; None if the model is not installed.

    Raises:
        DeviceError: The file exists and cannot be read; the agent repairs the file at its next
            start.
    """
    path = pointer_path(state_dir, name)
    try:
        content = read_regular(path)
        return POINTER.decode(content).value if content is not None else None
    except NewerVersionError as error:
        raise DeviceError(error.problem, found_in=str(path), remedy=error.remedy) from error
    except OSError as error:
        raise DeviceError(
            f"cannot read the pointer to the active model: {error.strerror}",
            found_in=str(path),
            remedy="run as a user who may read the agent's state folder",
        ) from error
    except ValueError as error:
        raise DeviceError(
            f"the pointer to the active model is damaged: {error}",
            found_in=str(path),
            remedy="start the agent, which repairs the file, or edgepack-agent install BUNDLE",
        ) from error


def active_models(state_dir: Path) -> tuple[str, ...]:
    """Return the names of the models that serve on this device."""
    return tuple(name for name in model_names(state_dir) if pointer_path(state_dir, name).is_file())


class PointerFile:
    """The pointer of a model, for the agent: repaired from the agent's own state.

    Args:
        state_dir: The agent's state folder.
        name: The model.
        write: Writes a small file durably.
    """

    def __init__(self, state_dir: Path, name: str, *, write: Write = write_file) -> None:
        path = pointer_path(state_dir, name)
        self._file = StateFile(path, POINTER, write=write, is_kept=True)
        self._last: ActivePointer | None = None

    @property
    def trouble(self) -> str:
        """Problem of the file, as a sentence; "" without a problem."""
        return self._file.trouble

    @property
    def is_sealed(self) -> bool:
        """True if a newer edgepack wrote the file, so that the file must stay unchanged."""
        return self._file.is_sealed

    def read(self) -> ActivePointer | None:
        """Return the pointer of the serving release.

        A pointer that was damaged or lost while the agent ran is written again. While the disk
        cannot be read or written, the last read pointer holds.

        Raises:
            OSError: The disk cannot be read, and the pointer was never read.
        """
        if self._file.is_sealed:
            return None
        try:
            found = self._file.load()
        except OSError:
            if self._last is None:
                raise
            return self._last
        if found is None and self._last is not None:
            with contextlib.suppress(OSError):  # The next read tries again.
                self._file.save(self._last)
            return self._last
        self._last = found
        return found

    def write(self, pointer: ActivePointer) -> None:
        """Switch to another release, or mark the serving release as committed: THE switch.

        Raises:
            OSError: The pointer could not be written; the old pointer is unchanged.
        """
        self._file.save(pointer)
        self._last = pointer

    def remove(self) -> None:
        """Take the pointer away: nothing of this model serves any more.

        Raises:
            OSError: The pointer could not be removed.
        """
        self._file.path.unlink(missing_ok=True)
        flush_folder(self._file.path.parent)
        self._last = None
