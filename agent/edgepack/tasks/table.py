"""List the tasks, by name.

Each task is a folder of this package; `measure.py` in the folder defines `TASK`.
"""

from collections.abc import Iterator, Mapping
from functools import cache
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


class _Tasks(Mapping[str, Task]):
    """Tasks that are imported when they are asked for: a child needs those of its model alone."""

    def __getitem__(self, name: str) -> Task:
        return _import_task(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


@cache
def _import_task(name: str) -> Task:
    if name not in NAMES:
        raise KeyError(name)
    task: Task = import_module(f"edgepack.tasks.{name}.measure").TASK
    return task


TASKS: Mapping[str, Task] = _Tasks()


def task_of(part: TaskOutputs) -> Task:
    """Return the task of some outputs; a task that this release does not know counts as unknown."""
    return TASKS[part.task if part.task in NAMES else UNKNOWN]


def items_of(description: ModelDescription) -> str:
    """Return the answers that a model's tasks count: `boxes and texts`, or `answers`."""
    parts = (part for part in description.parts if part.task not in NOT_EVALUATED)
    items = list(dict.fromkeys(task_of(part).items for part in parts))
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:]))) or "answers"
