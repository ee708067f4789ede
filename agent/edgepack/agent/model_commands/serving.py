"""The serving release of a model, for commands."""

from pathlib import Path

from edgepack.agent.state.models import MODEL_NAME
from edgepack.agent.state.pointer import ActivePointer, active_models, read_pointer
from edgepack.errors import DeviceError


def find_serving(state_dir: Path, name: str) -> ActivePointer:
    """Return the pointer to the serving release of a model.

    Args:
        state_dir: The agent's state folder.
        name: The model.

    Raises:
        DeviceError: No release of that model serves, or the pointer cannot be read.
    """
    try:
        pointer = read_pointer(state_dir, name) if MODEL_NAME.fullmatch(name) else None
        known = active_models(state_dir)
    except PermissionError as error:
        raise DeviceError(
            "this user may not read the agent's state",
            found_in=str(state_dir),
            remedy="run the command as root, or as a member of the state folder's group",
        ) from error
    if pointer is None:
        raise DeviceError(
            f"no release of a model {name!a:.120} serves on this device",
            found_in=f"{state_dir}: {', '.join(known) or 'no model'}",
            remedy="name a model that serves, or install one: edgepack-agent install BUNDLE",
        )
    return pointer


def find_runnable(state_dir: Path, name: str) -> ActivePointer:
    """Return the pointer to the serving release of a model that runs by itself.

    Args:
        state_dir: The agent's state folder.
        name: The model.

    Raises:
        DeviceError: See `find_serving`; or the model is an adapter.
    """
    pointer = find_serving(state_dir, name)
    if pointer.base:
        raise DeviceError(
            f"'{name}' is an adapter for '{pointer.base}', not a model by itself",
            remedy=f"edgepack-agent generate {pointer.base} PROMPT --adapter {name}",
        )
    return pointer
