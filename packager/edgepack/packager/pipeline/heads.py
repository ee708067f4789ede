"""What a model is for: its graph, its metadata or a person tells it, its values confirm it."""

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.pipeline.detections import find_objects, with_detection_head
from edgepack.packager.pipeline.findings import LOOKED_AT, Findings
from edgepack.packager.pipeline.meanings import find_meanings, untold_outputs
from edgepack.packager.pipeline.texts import find_texts, with_text_head
from edgepack.packager.progress import Progress
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tensors.heads import Head
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.detections.decoding import find_boxes
from edgepack.tasks.detections.layouts import DetectionHead
from edgepack.tasks.text.decoding import read_text
from edgepack.tasks.text.head import TextHead


def with_head(
    source: SourceModel, declarations: Mapping[str, OutputDeclaration], path: str
) -> SourceModel:
    """The model with the outputs that tell what it is for, as far as that is known without a run.

    Args:
        source: The model.
        declarations: Declared outputs; what is declared to be something else is none.
        path: The file they were read from, for messages.

    Raises:
        BuildError: See `with_detection_head`.
    """
    known = with_detection_head(source, declarations, path)
    return with_text_head(known, declarations) if known.head is None else known


def find_what_tells(
    source: SourceModel, samples: Samples, float_run: Run, progress: Progress
) -> Findings:
    """Runs the float model on samples, and looks for what it is to find, to read or to make.

    Args:
        source: The model.
        samples: All samples that were given to calibrate and to choose with.
        float_run: Runs the float model.
        progress: Told of each sample.

    Raises:
        BuildError: A person declared what the outputs do not hold.
    """
    untold = untold_outputs(source) if samples.decoder is None else ()
    if source.head is None and not untold:
        return Findings()
    feeds = list(samples.spread(LOOKED_AT))
    expected = [float_run(entry) for entry in feeds]
    others = find_meanings(untold, feeds, expected)
    if source.head is None:
        return others
    if isinstance(source.head, TextHead):
        found = find_texts(source.head, expected)
    else:
        found = find_objects(source.head, expected, samples, float_run, progress)
    return replace(found, meanings=others.meanings, notes=(*found.notes, *others.notes))


def finds(head: Head | None) -> Callable[[Outputs], bool]:
    """Whether the float model's outputs have boxes or text; of what is for neither, always."""

    def tells(outputs: Outputs) -> bool:
        if isinstance(head, DetectionHead):
            return bool((find_boxes(head, outputs).scores >= head.facts.named).any())
        return head is None or bool(read_text(head, outputs))

    return tells
