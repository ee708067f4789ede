"""List the tasks, by name."""

from collections.abc import Mapping

from edgepack.tasks.classification.measure import CLASSIFICATION
from edgepack.tasks.contract import Task
from edgepack.tasks.depth.measure import DEPTH
from edgepack.tasks.description import NOT_EVALUATED, ModelDescription, TaskOutputs
from edgepack.tasks.detections.measure import DETECTIONS
from edgepack.tasks.embedding.measure import EMBEDDING
from edgepack.tasks.picture.measure import PICTURE
from edgepack.tasks.probabilities.measure import PROBABILITIES
from edgepack.tasks.segmentation.measure import SEGMENTATION
from edgepack.tasks.selection.measure import SELECTED
from edgepack.tasks.sound.measure import SOUND
from edgepack.tasks.sums.measure import SUMS
from edgepack.tasks.text.measure import TEXT
from edgepack.tasks.threshold.measure import THRESHOLD
from edgepack.tasks.tokens.measure import TOKENS
from edgepack.tasks.unknown.measure import UNKNOWN_TASK
from edgepack.tasks.values.measure import VALUES

_ALL: tuple[Task, ...] = (
    CLASSIFICATION,
    PROBABILITIES,
    THRESHOLD,
    VALUES,
    SUMS,
    EMBEDDING,
    DETECTIONS,
    TEXT,
    TOKENS,
    SEGMENTATION,
    DEPTH,
    PICTURE,
    SOUND,
    SELECTED,
    UNKNOWN_TASK,
)

TASKS: Mapping[str, Task] = {task.name: task for task in _ALL}


def items_of(description: ModelDescription) -> str:
    """Return the answers that a model's tasks count: `boxes and texts`, or `answers`."""
    parts = (part for part in description.parts if part.task not in NOT_EVALUATED)
    items = list(dict.fromkeys(task_of(part).items for part in parts))
    return " and ".join(filter(None, (", ".join(items[:-1]), *items[-1:]))) or "answers"


def task_of(part: TaskOutputs) -> Task:
    """Return the task of some outputs; a task that this release does not know counts as unknown."""
    return TASKS.get(part.task, UNKNOWN_TASK)
