"""Recognition of a detector: its outputs of boxes, and samples with boxes."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace
from onnx import shape_inference

from edgepack.errors import BuildError
from edgepack.packager.config.outputs import OutputDeclaration, declared_head
from edgepack.packager.graph.detection_heads import FoundHead, find_detection_head, picture_size
from edgepack.packager.graph.shape_inference import infer
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tasks.findings import Findings
from edgepack.packager.tensors.sequence import Samples
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.detections.decoding import find_boxes, settle
from edgepack.tasks.detections.layouts import LAYOUTS, DetectionHead
from edgepack.tasks.doubts.meaning import BOXES, GRAPH_LAYOUT, MAY_BE, UNKNOWN_LAYOUT
from edgepack.tasks.values.parts import boxes_in
from edgepack.text import counted

_MAY_HIDE_BOXES = ("values", "sums", "depth", "embedding", "picture", "segmentation")
"""Tasks that may be declared for boxes and measure little of their places."""


def with_detection_head(
    source: SourceModel, declarations: Mapping[str, OutputDeclaration]
) -> SourceModel:
    """Return the model with its outputs of boxes, if the graph or a person names them.

    Args:
        source: The model.
        declarations: Declared outputs; an output declared otherwise is not a head.

    Raises:
        BuildError: Detections are declared without a layout, and the graph does not show the
            layout.
    """
    declared = declared_head(declarations)
    wanted = [name for name, entry in declarations.items() if entry.task == "detections"]
    try:
        graph = infer(source.model)
    except shape_inference.InferenceError:
        return source if declared is None else source.with_head(declared.part)
    if declared is not None:
        return source.with_head(replace(declared, size=picture_size(graph)).part)
    metadata = {entry.key: entry.value for entry in source.model.metadata_props}
    others = [name for name in declarations if name not in wanted]
    found = find_detection_head(graph, metadata, others)
    if others and found.head is None:
        source = _doubt_declared(source, find_detection_head(graph, metadata))
    if wanted and (found.head is None or found.head.outputs[0] != wanted[0]):
        raise BuildError(
            f"output {wanted[0]!r} is declared as detections, but the graph shows no layout",
            found_in=f"outputs.{toml_key(wanted[0])}",
            remedy=f"layout = one of {', '.join(LAYOUTS)}",
        )
    notes = source.notes if not found.unknown else (*source.notes, describe_unknown(found.unknown))
    source = replace(source, notes=notes)
    return source if found.head is None else source.with_head(found.head.part)


def _doubt_declared(source: SourceModel, found: FoundHead) -> SourceModel:
    """Return the model with a mark at outputs that look like boxes and were declared otherwise."""
    names = found.unknown if found.head is None else found.head.outputs
    layout = UNKNOWN_LAYOUT if found.head is None else found.head.layout
    parts = tuple(
        replace(part, settings={**part.settings, GRAPH_LAYOUT: layout})
        if part.task in _MAY_HIDE_BOXES and not set(part.outputs).isdisjoint(names)
        else part
        for part in source.description.parts
    )
    return replace(source, description=replace(source.description, parts=parts))


def doubt_boxes(expected: Sequence[Outputs], parts: Sequence[TaskOutputs]) -> Iterator[TaskOutputs]:
    """Yield the parts, with a mark at declared values that hold boxes beside scores.

    Args:
        expected: The float model's outputs, a dict per sample.
        parts: Outputs with a known meaning.
    """
    for part in parts:
        is_declared = part.source == "declared" and part.task in _MAY_HIDE_BOXES
        if is_declared and MAY_BE not in part.settings and boxes_in(expected, part.outputs):
            part = replace(part, settings={**part.settings, MAY_BE: BOXES})
        yield part


def describe_unknown(names: Collection[str]) -> str:
    """Return a request for facts that the graph does not show."""
    first = toml_key(next(iter(names)))
    listed = ", ".join(f"'{name}'" for name in names)
    one = len(names) == 1
    return (
        f"{'Output' if one else 'Outputs'} {listed} {'looks' if one else 'look'} like a "
        f"detector's, and nothing tells how boxes lie in {'it' if one else 'them'}: judged is how "
        "much of the values' variance is kept, which passes variants that lose objects. "
        f"[outputs.{first}] with task = 'detections' and layout = one of {', '.join(LAYOUTS)} in "
        "edgepack.toml if one fits, else a --metric of your own."
    )


def find_objects(
    head: DetectionHead,
    expected: Sequence[Outputs],
    samples: Samples,
    float_run: Run,
    progress: Progress,
) -> Findings:
    """Run the float model on every sample, and search for boxes.

    Args:
        head: Outputs of boxes.
        expected: The float model's outputs on a few of the samples.
        samples: All samples that were given to calibrate and to choose with.
        float_run: Runs the float model.
        progress: Called for each sample.

    Raises:
        BuildError: A person declared a layout that the outputs do not have.
    """
    settled = settle(head, expected)
    if settled is None and head.source == "declared":
        raise BuildError(
            f"the outputs {', '.join(head.outputs)} do not hold {head.facts.words}",
            found_in=f"outputs.{toml_key(head.outputs[0])}, layout = {head.layout!r}",
            remedy=f"another layout, one of {', '.join(LAYOUTS)}; boxes that are relative to "
            "anchors must be decoded in the graph, or judged by a --metric of your own",
        )
    if settled is None:
        return Findings(notes=(describe_unknown(head.outputs),))
    counts = []
    for number, feeds in enumerate(samples):
        boxes = find_boxes(settled, float_run(feeds))
        counts.append(int((boxes.scores >= settled.facts.named).sum()))
        progress(BuildStep(what="looking for objects", done=number + 1, total=samples.count))
    return Findings(
        parts=(settled.part,), counts=tuple(counts), notes=tuple(_describe(settled, counts))
    )


def _describe(head: DetectionHead, counts: Sequence[int]) -> list[str]:
    listed = ", ".join(f"'{name}'" for name in head.outputs)
    found, empty = sum(counts), counts.count(0)
    at = f"at threshold {head.facts.named:g}".replace("0.", ".")
    notes = [
        f"A detector: {listed} {'tells' if len(head.outputs) == 1 else 'tell'} "
        f"{head.facts.words} ({_TOLD[head.source]}). A variant is judged by F1 of its boxes "
        "against the float model's own."
    ]
    if not found:
        notes.append(
            f"The float model finds nothing {at} in any of {counted(len(counts), 'sample')}: "
            "judged is how much of its outputs' variance is kept, which says little. Give samples "
            "of what it is to find."
        )
    elif empty:
        notes.append(
            f"The float model finds {counted(found, 'box', 'boxes')} {at}, and nothing in {empty} "
            f"of {counted(len(counts), 'sample')}, which say nothing of boxes."
        )
    return notes


_TOLD = {
    "graph": "told by the graph",
    "metadata": "told by the model's metadata",
    "declared": "declared in [outputs]",
}
