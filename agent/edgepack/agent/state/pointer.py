"""The pointer to the model that serves: one small file, switched in one atomic step.

`active.json` in the state folder is read by everything that serves the model, and written by
the agent alone. A reader finds the old pointer or the new one, never a mixture and, once a
model was installed, never none.
"""

from pathlib import Path

import msgspec

from edgepack.durable import flush_folder, write_file
from edgepack.errors import DeviceError
from edgepack.wire.messages import BundleRef, Choice

POINTER_FILE = "active.json"


class ActivePointer(msgspec.Struct, frozen=True, kw_only=True):
    """What serves now.

    Attributes:
        bundle: The bundle; its digest names the slot.
        choice: Which variant of it runs, and why; `choice.chosen` is never "".
        since: When the pointer was switched to it, seconds since the epoch.
        committed: Whether it has stood its soak.
    """

    bundle: BundleRef
    choice: Choice
    since: float
    committed: bool

    @property
    def digest(self) -> str:
        """The slot's name: the bundle's digest."""
        return self.bundle.digest


def pointer_path(state_dir: Path) -> Path:
    """Where the pointer is kept."""
    return state_dir / POINTER_FILE


def read_pointer(state_dir: Path) -> ActivePointer | None:
    """The model that serves now; None when none was ever installed.

    Raises:
        DeviceError: The file is there and cannot be read; the agent writes no such file.
    """
    path = pointer_path(state_dir)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DeviceError(
            f"cannot read the pointer to the active model: {error.strerror}",
            found_in=str(path),
            remedy="run as a user who may read the agent's state folder",
        ) from error
    try:
        return msgspec.json.decode(content, type=ActivePointer)
    except msgspec.DecodeError as error:
        raise DeviceError(
            f"the pointer to the active model is damaged: {error}",
            found_in=str(path),
            remedy="edgepack-agent install BUNDLE writes it anew",
        ) from error


def write_pointer(state_dir: Path, pointer: ActivePointer) -> None:
    """Switches to another model, or marks the one that serves as committed: THE switch.

    Raises:
        OSError: It could not be written; the old pointer still stands.
    """
    write_file(pointer_path(state_dir), msgspec.json.encode(pointer))


def remove_pointer(state_dir: Path) -> None:
    """Takes the pointer away: the first model of a device failed, so none serves.

    Raises:
        OSError: It could not be removed.
    """
    pointer_path(state_dir).unlink(missing_ok=True)
    flush_folder(state_dir)
