"""Name the classes of outputs: as declared, else as the model's metadata has them."""

import re
from collections.abc import Mapping

from msgspec.structs import replace

from edgepack.packager.config.outputs import NAMED, OutputDeclaration
from edgepack.packager.graph.class_names import read_class_names
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tasks.texts import read_characters
from edgepack.tasks.description import (
    MAX_CLASS_NAME,
    MAX_CLASS_NAMES,
    ModelDescription,
    TaskOutputs,
)

_BY_METADATA = ("classification", "probabilities", "threshold", "detections", "segmentation")
_OF_ROWS = ("classification", "probabilities", "threshold")


def with_class_names(
    description: ModelDescription,
    source: SourceModel,
    declarations: Mapping[str, OutputDeclaration],
) -> ModelDescription:
    """Return the description with the names of classes.

    Args:
        description: What outputs mean.
        source: The model; its metadata may name classes.
        declarations: Declared outputs; declared names count before the metadata's.
    """
    metadata = {entry.key: entry.value for entry in source.model.metadata_props}
    known = read_class_names(metadata) or source.labels
    if len(known) > MAX_CLASS_NAMES:
        known = ()
    widths = {spec.name: spec.shape[-1] for spec in source.outputs if spec.shape}

    def names_of(part: TaskOutputs) -> tuple[str, ...]:
        declared = declarations.get(part.outputs[0])
        if part.task == "text" and not (declared is not None and declared.class_names):
            return _characters(metadata, widths.get(part.outputs[0]))
        if declared is not None and declared.class_names and part.task in NAMED:
            return declared.class_names
        width = widths.get(part.outputs[0])
        is_other = part.task in _OF_ROWS and isinstance(width, int) and width not in (1, len(known))
        return () if part.task not in _BY_METADATA or is_other else known

    return ModelDescription(
        parts=tuple(replace(part, class_names=names_of(part)) for part in description.parts)
    )


def _characters(metadata: Mapping[str, str], width: int | str | None) -> tuple[str, ...]:
    """Return the characters that the metadata lists, those that steer a terminal left out."""
    found = read_characters(metadata, width if isinstance(width, int) else None)
    if len(found) > MAX_CLASS_NAMES:
        return ()
    return tuple(it if _CONTROL.search(it) is None else "" for it in map(_cut, found))


def _cut(character: str) -> str:
    return character[:MAX_CLASS_NAME]


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
