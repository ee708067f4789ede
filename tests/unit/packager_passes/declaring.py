"""What a person declares of a model's outputs."""

from edgepack.tasks.description import ModelDescription, TaskOutputs


def declare(**tasks: str) -> ModelDescription:
    """Return a description of outputs, by name the task of each."""
    parts = (
        TaskOutputs(task=task, outputs=(name,), source="declared") for name, task in tasks.items()
    )
    return ModelDescription(parts=tuple(parts))
