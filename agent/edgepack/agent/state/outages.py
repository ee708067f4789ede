"""Reasons why an installed model does not serve, for readers other than the agent."""

import contextlib
from pathlib import Path

import msgspec

from edgepack.agent.state.models import model_folder
from edgepack.agent.state.pointer import ActivePointer, active_models, read_pointer
from edgepack.agent.state.state_file import read_regular
from edgepack.errors import DeviceError
from edgepack.versions import Format, NewerVersionError, Version

JOURNAL_FILE = "journal.json"
_NO_OUTAGE = ("IDLE", "REMOVED")


class _Outage(msgspec.Struct, frozen=True, kw_only=True):
    """Report of a journal on its model.

    Attributes:
        state, because, committed: See `update.journal`.
    """

    state: str = "IDLE"
    because: str = ""
    committed: ActivePointer | None = None


_OUTAGE = Format("journal", _Outage, Version(1, 0))


def describe_outage(state_dir: Path, name: str) -> str:
    """Return why no release of a model serves, from the model's journal.

    Args:
        state_dir: The agent's state folder.
        name: The model; any text.

    Returns:
        State and reason, as a sentence, or the fault of the pointer; "" if a release serves, the
        model was never installed or was removed, or the journal cannot be read.
    """
    try:
        if read_pointer(state_dir, name) is not None:
            return ""
    except DeviceError as error:
        return error.problem
    except ValueError:
        return ""
    try:
        content = read_regular(model_folder(state_dir, name) / JOURNAL_FILE)
        found = _OUTAGE.decode(content).value if content is not None else _Outage()
    except (OSError, ValueError, NewerVersionError):
        return ""
    if found.state in _NO_OUTAGE:
        return ""
    version = found.committed.bundle.version if found.committed is not None else ""
    return f"{f'{name} {version}'.strip()} is {found.state}: {found.because}"


def adapters_of(state_dir: Path, base: str) -> list[ActivePointer]:
    """Return the pointers of the serving adapters for a model, fitting or not."""
    found = []
    for name in active_models(state_dir):
        with contextlib.suppress(DeviceError):  # Another model's damage is its own.
            pointer = read_pointer(state_dir, name)
            if pointer is not None and pointer.base == base:
                found.append(pointer)
    return found
