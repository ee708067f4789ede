"""A task as plain files and a command line, for `edgepack build`."""

import shutil
from pathlib import Path

import numpy as np

from benchmarks.tasks.task import Task

CALIBRATION_COUNT = 100
"""What the other tools were given too, so that the tables compare like with like."""


def export_task(task: Task, folder: Path) -> Path:
    """Write the first calibration samples as `FOLDER/calibration/NNNN.npz`, a sample in each file.

    Args:
        task: The task.
        folder: Is made; its `calibration` folder is replaced.

    Returns:
        The calibration folder.
    """
    samples = task.calibration()[:CALIBRATION_COUNT]  # First: a task may lack a tool.
    calibration = folder / "calibration"
    shutil.rmtree(calibration, ignore_errors=True)
    calibration.mkdir(parents=True)
    for index, feeds in enumerate(samples):
        np.savez_compressed(calibration / f"{index:04d}.npz", **feeds)  # type: ignore[arg-type]
    return calibration


def build_command(task: Task, calibration: Path) -> str:
    """Return the command that builds the task's model, for the repository's root.

    The build may choose by the development set; `python -m benchmarks` prints the evaluation set.
    """
    words = [f"edgepack build {task.model}", f"--calibration {calibration}"]
    words += [f"--shape {name}={','.join(map(str, shape))}" for name, shape in task.shapes.items()]
    words.append(f"--metric benchmarks.tasks.{task.name}:score_development")
    return " \\\n    ".join(words)
