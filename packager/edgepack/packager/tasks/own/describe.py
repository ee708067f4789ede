"""Describe a model's outputs where the user's own metric, or labels, decide."""

from edgepack.packager.source.model import SourceModel
from edgepack.tasks.description import OWN, ModelDescription, TaskOutputs


def describe_own(source: SourceModel) -> ModelDescription:
    """Return the declared outputs, and all others as the user's own."""
    known = source.description
    names = tuple(spec.name for spec in source.outputs if spec.name not in known.outputs)
    if not names:
        return known
    return known.with_parts(TaskOutputs(task=OWN, outputs=names, source="declared"))
