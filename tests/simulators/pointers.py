"""Switches of the serving release, like an agent's, for tests without an agent."""

from pathlib import Path

from edgepack.agent.state.models import model_folder
from edgepack.agent.state.pointer import ActivePointer, PointerFile


def write_pointer(state_dir: Path, pointer: ActivePointer) -> None:
    name = pointer.bundle.name
    model_folder(state_dir, name).mkdir(parents=True, exist_ok=True)
    PointerFile(state_dir, name).write(pointer)
