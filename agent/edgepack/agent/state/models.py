"""Folders of a device's models, a folder for each model name."""

import re
from pathlib import Path

from edgepack.agent.state.state_file import put_aside

DEFAULT_STATE_DIR = Path("/var/lib/edgepack")
MODELS_FOLDER = "models"
MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""Names that a bundle can have; each is safe as a folder's name."""


def model_folder(state_dir: Path, name: str) -> Path:
    """Return the folder of a model's journal and pointer.

    Raises:
        ValueError: No model can have that name.
    """
    if not MODEL_NAME.fullmatch(name):
        raise ValueError(f"{name!a:.120} is not a name of a model")
    return state_dir / MODELS_FOLDER / name


def make_model_folder(state_dir: Path, name: str) -> Path:
    """Make the folder of a model; put any other entry in its place aside.

    Raises:
        ValueError: No model can have that name.
        OSError: The folder cannot be made.
    """
    folder = model_folder(state_dir, name)
    for path in (folder.parent, folder):
        if path.exists() and not path.is_dir():
            put_aside(path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def model_names(state_dir: Path) -> tuple[str, ...]:
    """Return the models that have a folder, in order."""
    try:
        found = [path.name for path in (state_dir / MODELS_FOLDER).iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(name for name in found if MODEL_NAME.fullmatch(name)))
