"""List the tasks, by name.

Each task is a folder of this package; `measure.py` in the folder defines `TASK`.
"""

from collections.abc import Mapping
from importlib import import_module

from edgepack.tasks.contract import Task
from edgepack.tasks.description import (
    NOT_EVALUATED,
    UNKNOWN,
    ModelDescription,
    TaskOutputs,
)

NAMES = (
    "classification",
    "probabilities",
    "threshold",
    "values",
    "sums",
    "embedding",
    "detections",
    "text",
    "pages",
    "transcript",
    "tokens",
    "segmentation",
    "depth",
    "picture",
    "sound",
    "anomaly",
    "own",
    "selection",
    "unknown",
)

TASKS: Mapping[str, Task] = {
    name: import_module(f"edgepack.tasks.{name}.measure").TASK for name in NAMES
}


def task_of(part: TaskOutputs) -> Task:
    """Return the task of some outputs; a task that this release does not know counts as unknown."""
    return TASKS.get(part.task, TASKS[UNKNOWN])


def items_of(description: ModelDescription) -> str:
    """Return the answers that a model's tasks count: `boxes and texts`, or `answers`."""
    parts = (part for part in description.parts if part.task not in NOT_EVALUATED)
    items = list(dict.fromkeys(task_of(part).items for part in parts))
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:]))) or "answers"
