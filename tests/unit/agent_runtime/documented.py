"""The model that the documented examples ask."""

from pathlib import Path

from edgepack.agent.state.pointer import ActivePointer
from edgepack.tasks.description import ModelDescription, TaskOutputs
from tests.unit.agent_runtime.examples import install_model
from tests.unit.pictures.drawn import described, noise


def install_documented(state_dir: Path, folder: Path) -> ActivePointer:
    """Install `defects`, the classifier of pictures that the documented examples ask.

    Args:
        state_dir: The agent's state folder.
        folder: Folder of the examples, which gets the picture `part.png`.
    """
    names = ("scratch", "dent", "stain", "none")
    part = TaskOutputs(task="classification", outputs=("y",), class_names=names)
    meaning = ModelDescription(parts=(part,), inputs=(described(height=8, width=8),))
    noise(9, 12).save(folder / "part.png")
    return install_model(state_dir, 1, scale=1.0, name="defects", description=meaning)
