"""Description of a model: meaning of its outputs, with the source of each meaning.

1. A person declares the meaning in `[outputs]`.
2. The graph or the model's metadata shows the meaning: heads of detectors and recognizers, a
   selection at the end. The float model's values must confirm heads.
3. The float model's values show the meaning: maps, pictures, sound, scores of classes.
4. The rest is unknown, and is measured by each possible meaning.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.graph.queries import inputs_behind, is_rounded_quantity
from edgepack.packager.progress import Progress
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.padding import without_padding
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.watched_outputs import describe_evaluation, describe_selection
from edgepack.packager.tasks.declared_values import check_probabilities, check_tolerances
from edgepack.packager.tasks.detections import doubt_boxes, find_objects, with_detection_head
from edgepack.packager.tasks.findings import LOOKED_AT, Findings
from edgepack.packager.tasks.maps import may_be_map, recognize_maps
from edgepack.packager.tasks.recognizers import recognize
from edgepack.packager.tasks.reconstruction import with_residuals
from edgepack.packager.tasks.scores import FEWEST_FOR_VARIETY, doubt_mixtures, find_shares, propose
from edgepack.packager.tasks.texts import find_texts, with_text_head
from edgepack.packager.tasks.transcript.graph import find_transcripts, with_transcript
from edgepack.packager.tensors.sequence import Feeds, Samples
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import (
    GUESSED_FROM,
    IGNORED,
    OWN,
    UNKNOWN,
    ModelDescription,
    Source,
    TaskOutputs,
)
from edgepack.tasks.detections.decoding import find_boxes
from edgepack.tasks.detections.layouts import DetectionHead
from edgepack.tasks.table import task_of
from edgepack.tasks.text.decoding import read_text
from edgepack.tasks.text.head import TextHead
from edgepack.tasks.transcript.measure import NAME as TRANSCRIPT
from edgepack.tasks.transcript.words import WordReader

_DESCRIBED_BY = 64
"""Samples by which scores are told from quantities, at most."""


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A description, and its sources.

    Attributes:
        description: Of every output.
        counts: How much the float model finds in each sample, where that is counted.
        notes: How variants are judged, a sentence each.
    """

    description: ModelDescription
    counts: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


def describe_own(source: SourceModel) -> ModelDescription:
    """Return the declared outputs, and all others as measured by the user's metric or labels."""
    known = source.description
    names = tuple(spec.name for spec in source.outputs if spec.name not in known.outputs)
    part = TaskOutputs(task=OWN, outputs=names, source="declared")
    return known.with_parts(part) if names else known


def with_heads(source: SourceModel, declarations: Mapping[str, OutputDeclaration]) -> SourceModel:
    """Return the model with its heads, from a person, its graph or its metadata.

    Args:
        source: The model.
        declarations: Declared outputs; an output declared otherwise is not a head.

    Raises:
        BuildError: See `with_detection_head`.
    """
    known = with_detection_head(source, declarations)
    if known.description.part_of("detections") is not None:
        return known
    return with_text_head(with_transcript(known, declarations), declarations)


def describe(
    source: SourceModel, samples: Samples, float_run: Run, progress: Progress
) -> Described:
    """Describe a model by known facts and by its values on samples.

    Args:
        source: The model, with facts from a person, graph or metadata.
        samples: All samples that were given to calibrate and to choose with.
        float_run: Runs the float model.
        progress: Called for each sample when objects are searched.

    Raises:
        BuildError: A person's declaration contradicts the outputs.
    """
    heads = ("detections", "text", TRANSCRIPT)
    stated = tuple(part for part in source.description.parts if part.task not in heads)
    if samples.are_texts:
        known = ModelDescription(parts=stated).with_parts(*_fed_back(source, samples))
        if not _undescribed(source, known):
            return Described(description=known)
    looked_at = list(samples.spread(LOOKED_AT))
    expected = [float_run(feeds) for feeds in looked_at]
    found = _settle_head(source, expected, samples, float_run, progress)
    is_seen = bool(found.parts) and (not found.counts or any(found.counts))
    parts = found.parts if is_seen or not source.watched else ()
    known = ModelDescription(parts=(*stated, *parts)).with_parts(*_fed_back(source, samples))
    known = describe_selection(source, known).with_parts(*_constants(source))
    untold = _undescribed(source, known) if samples.decoder is None else ()
    maps = find_maps(_may_be_maps(source, untold), looked_at, expected)
    known = known.with_parts(*maps.parts)
    more = [
        without_padding(float_run(feeds), feeds, samples.mask)
        for feeds in samples.spread(_DESCRIBED_BY)
    ]
    known = known.with_parts(*find_shares(source, more, _undescribed(source, known)))
    known = known.with_parts(*recognize(more, _undescribed(source, known)))
    known = known.with_parts(*_quantized(source, more, _undescribed(source, known)))
    known = known.with_parts(*propose(more, _undescribed(source, known)))
    known = ModelDescription(parts=tuple(task_of(part).settle(part, more) for part in known.parts))
    check_tolerances(known.parts, more)
    check_probabilities(known.parts, more)
    known = ModelDescription(parts=tuple(doubt_mixtures(source, known.parts)))
    known = ModelDescription(parts=tuple(doubt_boxes(more, known.parts)))
    known = with_residuals(known, looked_at, expected, _states(samples))
    if len(more) < FEWEST_FOR_VARIETY:
        known = ModelDescription(parts=tuple(_guessed(part, len(more)) for part in known.parts))
    notes = (*found.notes, *maps.notes, *describe_evaluation(source.watched, known))
    return Described(description=known, counts=found.counts, notes=notes)


def _guessed(part: TaskOutputs, count: int) -> TaskOutputs:
    """Return the part with the count of samples, if their values alone told its task."""
    if part.source != "values":
        return part
    return replace(part, settings={**part.settings, GUESSED_FROM: count})


def _fed_back(source: SourceModel, samples: Samples) -> tuple[TaskOutputs, ...]:
    """Return the outputs that feed the next inference, and a decoder's scores.

    Without other outputs that are read, people read the states, and nothing tells their task.
    """
    parts = []
    if samples.decoder is not None:
        scores = samples.decoder.scores
        parts.append(TaskOutputs(task="tokens", outputs=(scores,), source="graph"))
    if states := _states(samples):
        ignored = [part for part in source.description.parts if part.task == IGNORED]
        unread = {*states, *(name for part in ignored for name in part.outputs)}
        is_inner = any(spec.name not in unread for spec in source.outputs)
        how: Source = "graph" if is_inner else "unknown"
        parts.append(TaskOutputs(task=UNKNOWN, outputs=states, source=how))
    return tuple(parts)


def _states(samples: Samples) -> tuple[str, ...]:
    """Return the outputs that only feed the next inference."""
    if samples.decoder is None:
        return samples.fed_only
    return tuple(name for name in samples.decoder.outputs if name != samples.decoder.scores)


def _constants(source: SourceModel) -> Iterator[TaskOutputs]:
    """Yield the outputs that do not depend on input values, such as anchors."""
    graph = source.model.graph
    for spec in source.outputs:
        if not inputs_behind(graph, spec.name, by_value=True):
            yield TaskOutputs(task=UNKNOWN, outputs=(spec.name,), source="graph")


def _quantized(
    source: SourceModel, expected: Sequence[Outputs], names: Sequence[str]
) -> Iterator[TaskOutputs]:
    """Yield the outputs of whole numbers that are quantities, not decisions."""
    for name in names:
        is_whole = expected[0][name].dtype.kind in "iu"
        if is_whole and is_rounded_quantity(source.model.graph, name):
            yield TaskOutputs(task=UNKNOWN, outputs=(name,))


def describe_outputs(
    expected: Sequence[Outputs], known: ModelDescription | None = None
) -> ModelDescription:
    """Describe outputs by their values alone, without other knowledge.

    Args:
        expected: The float model's outputs, a dict per sample.
        known: Known parts.
    """
    known = known or ModelDescription()
    return known.with_parts(*propose(expected, [n for n in expected[0] if n not in known.outputs]))


def _undescribed(source: SourceModel, known: ModelDescription) -> tuple[str, ...]:
    names = (*(spec.name for spec in source.outputs), *source.watched)
    return tuple(name for name in names if name not in known.outputs)


def _settle_head(
    source: SourceModel,
    expected: Sequence[Outputs],
    samples: Samples,
    float_run: Run,
    progress: Progress,
) -> Findings:
    """Return the detector's or recognizer's head, if the float model's values confirm the head."""
    if (part := source.description.part_of("text")) is not None:
        return find_texts(TextHead.of(part), expected)
    if (part := source.description.part_of(TRANSCRIPT)) is not None:
        return find_transcripts(part, expected)
    if (part := source.description.part_of("detections")) is not None:
        return find_objects(DetectionHead.of(part), expected, samples, float_run, progress)
    return Findings()


def _may_be_maps(source: SourceModel, names: Sequence[str]) -> list[str]:
    """Return the outputs that may be a map or a sound by their sizes."""
    inputs = [spec.shape for spec in source.inputs]
    shapes = {spec.name: spec.shape for spec in source.outputs}
    return [name for name in names if name in shapes and may_be_map(shapes[name], inputs)]


def find_maps(
    names: Sequence[str], feeds: Sequence[Feeds], expected: Sequence[Outputs]
) -> Findings:
    """Return which outputs are maps, pictures or sound, and ask where values do not tell.

    Args:
        names: Outputs of which nothing is known.
        feeds, expected: A few of the samples, and the float model's outputs.
    """
    told = recognize_maps(names, feeds, expected)
    notes = [
        f"Output '{name}' is {_WORDS[task]}, told by its size and values. Where it is something "
        f"else, [outputs.{toml_key(name)}] in edgepack.toml says so."
        for name, task in told.tasks.items()
    ]
    notes += [_ask(name, "a map of the picture", _OF_MAPS) for name in told.maps]
    notes += [_ask(name, "a sound", _OF_SOUNDS) for name in told.sounds]
    parts = [
        TaskOutputs(task=task, outputs=(name,), source="values")
        for name, task in told.tasks.items()
    ]
    return Findings(parts=tuple(parts), notes=tuple(notes))


def _ask(name: str, what: str, tasks: str) -> str:
    return (
        f"Output '{name}' looks like {what}, and nothing tells of which kind: judged is how much "
        "of its values' variance is kept, which says little of what it is used for. "
        f"[outputs.{toml_key(name)}] with task = {tasks} in edgepack.toml if it is that."
    )


_OF_MAPS = "'segmentation' (classes or a mask), 'depth' or 'picture'"
_OF_SOUNDS = "'sound'"

_WORDS: Mapping[str, str] = {
    "segmentation": "a map of classes, judged by the mean IoU with the float model's own",
    "picture": "a picture, judged by the PSNR to the float model's own",
    "sound": "a sound, judged by the SI-SDR to the float model's own",
}


def finds(description: ModelDescription) -> Callable[[Outputs], bool]:
    """Return a function that tells whether outputs have boxes or text; of neither, always."""
    boxes, text = description.part_of("detections"), description.part_of("text")
    if boxes is not None:
        own = DetectionHead.of(boxes)
        return lambda outputs: bool((find_boxes(own, outputs).scores >= own.facts.named).any())
    if text is not None:
        head = TextHead.of(text)
        return lambda outputs: bool(read_text(head, outputs))
    if (part := description.part_of(TRANSCRIPT)) is not None:
        reader = WordReader(part)
        return lambda outputs: bool(reader.read(outputs[part.outputs[0]]))
    return lambda outputs: True
