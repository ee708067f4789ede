"""Samples of a build, opened, followed through states and divided, with the float model's
outputs.
"""

from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.bundle.golden import Golden
from edgepack.bundle.metadata import Feature
from edgepack.errors import BuildError
from edgepack.packager.gates.labels import LabelledSamples, describe_collapse, open_labelled
from edgepack.packager.pipeline.build_options import SampleSource
from edgepack.packager.pipeline.open_model import wanted_inputs
from edgepack.packager.pipeline.reference import draw_reference
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import Progress
from edgepack.packager.samples.coverage import measure_coverage
from edgepack.packager.samples.decoders import follow_tokens
from edgepack.packager.samples.files import RANDOM_PREFIX, OpenedSamples, open_samples, write_arrays
from edgepack.packager.samples.golden_selection import choose_golden, choose_pictures
from edgepack.packager.samples.padding import follow_mask
from edgepack.packager.samples.preprocessing import (
    InputValues,
    describe_inputs,
    find_doubts,
)
from edgepack.packager.samples.prompts import GIVE_PROMPTS
from edgepack.packager.samples.recurrence import follow_states
from edgepack.packager.samples.split import CapturedSamples, add_captured, split_samples
from edgepack.packager.samples.split import describe as describe_split
from edgepack.packager.samples.texts import are_prompts, open_texts
from edgepack.packager.samples.token_steps import take_later_steps
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.reference import FloatSource
from edgepack.packager.source.shape_advice import suggest_shapes
from edgepack.packager.tasks.class_names import with_class_names
from edgepack.packager.tasks.describe import Described, describe, describe_own, finds
from edgepack.packager.tensors.sequence import SampleSplit
from edgepack.tasks.description import ModelDescription

RANDOM_WHEN_NONE = "random:16"
"""Samples where no profile calibrates and none were given: enough to compare outputs."""


class BuildSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples, opened and divided, and facts about samples and model for a person.

    Attributes:
        golden: Some of the held-out samples, with the expected outputs.
        pictures: Golden pictures to ship: path in the bundle and file.
        float_source: Runs the source model, for every profile.
        input_values: How each input was prepared, and its values.
        doubts: Reasons against that preparation; shown to a person first.
        labelled: The held-out samples with their labels; None where none were given.
        captured: Samples that devices captured.
        reference: Features that devices measure drift by; empty if samples are random, or the
            bundle is encrypted, or before `add_reference`.
        are_real: Whether no samples were drawn.
    """

    opened: OpenedSamples
    split: SampleSplit
    golden: Golden
    pictures: tuple[tuple[str, Path], ...] = ()
    float_source: FloatSource
    notes: tuple[str, ...]
    input_values: tuple[InputValues, ...] = ()
    doubts: tuple[str, ...] = ()
    labelled: LabelledSamples | None = None
    captured: CapturedSamples = CapturedSamples()
    reference: tuple[Feature, ...] = ()
    are_real: bool


class OpenedBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A request with its model and samples.

    Attributes:
        request: The request.
        source: The model.
        samples: Samples that variants are made from and evaluated on.
    """

    request: BuildRequest
    source: SourceModel
    samples: BuildSamples


def open_build_samples(
    request: BuildRequest,
    source: SourceModel,
    profiles: tuple[Profile, ...],
    work: Path,
    progress: Progress,
) -> BuildSamples:
    """Open and divide the samples of a build, and choose golden samples.

    Args:
        request: The build's request.
        source: The model; samples are checked against its inputs.
        profiles: Whether any needs calibration decides whether samples must be given.
        work: Folder for states that are carried along.
        progress: Called for each file.

    Raises:
        BuildError: There are no samples, too few, or samples do not fit the model, or the model
            does not run on the samples.
    """
    held_out = _read_source(request.evaluation, work / "evaluation")
    calibrating = [profile.name for profile in profiles if profile.lowering is not None]
    calibration, notes = _read_source(request.calibration, work / "calibration"), []
    if not calibration and calibrating:
        raise BuildError(
            f"profile {calibrating[0]!r} calibrates and no samples were given",
            remedy=GIVE_PROMPTS
            if source.texts is not None
            else "--calibration PATH with 100 to 300 real samples (a folder of .npz, .npy or "
            "images, one .npz, or ONNX test data); --calibration random:100 only to try it out",
        )
    if not calibration:
        calibration = held_out or RANDOM_WHEN_NONE
        notes.append(f"No calibration samples were given; {calibration} took their place.")
    opened = _open_given(calibration, request, source, work / "states", progress)
    notes += opened.notes
    evaluation = None
    if held_out and held_out != calibration:
        evaluation = _open_given(held_out, request, source, work / "held-out-states", progress)
        notes += [note for note in evaluation.notes if note not in notes]
    float_source = FloatSource(source, work / "source.onnx")
    found = Described(description=describe_own(source))
    if request.metric is None and request.labels is None:  # these know what outputs mean
        found = describe(source, opened.samples, float_source, progress)
    description = with_class_names(found.description, source, request.outputs)
    notes += found.notes
    split = split_samples(opened, evaluation, [count > 0 for count in found.counts])
    split, captured = _add_captured(request, source, split, opened, evaluation, work, progress)
    notes += [captured.note] if captured.count else []
    split = _with_description(split, description)
    notes.append(f"The samples were divided: {describe_split(split)}.")
    split, told = take_later_steps(split, float_source, work / "texts", progress)
    notes += told
    coverage = measure_coverage(split, source.inputs, request.declarations)
    split = replace(split, uncovered=coverage.notes, extremes=coverage.extremes)
    notes += coverage.notes
    golden, places = choose_golden(
        source, split.held_out, work, progress, float_source, finds(description)
    )
    split = replace(split, golden=places)
    pictures: tuple[tuple[str, Path], ...] = ()
    if not request.leave_out_pictures:
        pictures, told_of_pictures = choose_pictures(split.held_out, places)
        notes += [told_of_pictures] if told_of_pictures else []
    ranged = split.calibration
    input_values = describe_inputs(ranged, source.inputs, request.declarations)
    doubts: tuple[str, ...] = ()
    if not opened.is_random:
        doubts = find_doubts(source, ranged, input_values, request.declarations)
    labelled = _open_labels(request, held_out, source)
    if labelled is not None and (collapse := describe_collapse(labelled, float_source)):
        doubts = (*doubts, collapse)
    return BuildSamples(
        opened=opened,
        input_values=input_values,
        doubts=doubts,
        split=split,
        golden=golden,
        pictures=pictures,
        float_source=float_source,
        notes=(*source.notes, *notes),
        captured=captured,
        labelled=labelled,
        are_real=not opened.is_random and not (evaluation is not None and evaluation.is_random),
    )


def add_reference(
    samples: BuildSamples, request: BuildRequest, source: SourceModel
) -> BuildSamples:
    """Return samples with the features that devices measure drift by, for a bundle.

    Raises:
        BuildError: The float model does not run on a sample.
    """
    if request.encrypt_to:
        note = (
            "Devices measure no drift: an encrypted bundle states no mean of its samples' values."
        )
        return replace(samples, notes=(*samples.notes, note))
    if not samples.are_real:
        return samples
    drawn = draw_reference(source, samples.split, samples.float_source)
    return replace(samples, reference=drawn)


def _add_captured(
    request: BuildRequest,
    source: SourceModel,
    split: SampleSplit,
    opened: OpenedSamples,
    evaluation: OpenedSamples | None,
    work: Path,
    progress: Progress,
) -> tuple[SampleSplit, CapturedSamples]:
    if request.captured and opened.is_random:
        raise BuildError(
            "captured samples need given samples, and no samples were given",
            found_in="--captured",
            remedy="--calibration PATH with checked samples",
        )
    captured = [
        _open_given(str(path), request, source, work / f"captured-{number}", progress)
        for number, path in enumerate(request.captured)
    ]
    return add_captured(split, [opened, *([evaluation] if evaluation else [])], captured)


def _with_description(split: SampleSplit, description: ModelDescription) -> SampleSplit:
    return replace(
        split,
        calibration=replace(split.calibration, description=description),
        search=replace(split.search, description=description),
        held_out=replace(split.held_out, description=description),
    )


def _read_source(given: SampleSource, folder: Path) -> str:
    """Return the source of the samples; arrays are written to a folder first."""
    if isinstance(given, str | Path):
        return str(given)
    return str(write_arrays(given, folder))


def _open_labels(
    request: BuildRequest, held_out: str, source: SourceModel
) -> LabelledSamples | None:
    if request.labels is None:
        return None
    if request.metric is not None or not held_out:
        raise BuildError(
            "labels and a metric were given: which decides?"
            if request.metric is not None
            else "labels were given, and no evaluation samples that they belong to",
            found_in="--labels",
            remedy="--evaluation PATH --labels FILE, or --metric alone",
        )
    return open_labelled(request.labels, held_out, wanted_inputs(source, request))


def _open_given(
    where: str, request: BuildRequest, source: SourceModel, folder: Path, progress: Progress
) -> OpenedSamples:
    if where.startswith(RANDOM_PREFIX):
        _check_sizes(source)
    if are_prompts(where):
        opened = open_texts(where, source, progress)
    else:
        opened = open_samples(where, wanted_inputs(source, request), progress)
    if request.metric is None and request.labels is None:  # these know what outputs mean
        opened = follow_tokens(opened, source, request.declarations, request.outputs)
        if opened.samples.answers is not None and opened.samples.decoder is None:
            if request.shapes:
                raise BuildError(
                    "prompts have any length, and these shapes leave no scores of the next token",
                    found_in="--shape " + ", ".join(request.shapes),
                    remedy="leave the shapes out: for a profile that needs fixed ones edgepack "
                    "builds a decoder's graph itself; --context TOKENS bounds its length",
                )
            raise BuildError(
                "prompts are for models that score the next token, and no output is known to do so",
                found_in=str(source.path),
                remedy="[outputs.NAME] with task = 'tokens' and tokens = 'INPUT' in edgepack.toml; "
                "or arrays as samples",
            )
    followed = opened
    if opened.samples.decoder is None:
        followed = follow_states(
            opened, source, request.declarations, folder=folder, progress=progress
        )
    masked = follow_mask(followed, source)
    return replace(masked, samples=replace(masked.samples, description=source.description))


def _check_sizes(source: SourceModel) -> None:
    """Refuse to draw samples for a model with open sizes other than the batch size."""
    open_inputs = [
        spec for spec in source.inputs if any(isinstance(size, str) for size in spec.shape[1:])
    ]
    if open_inputs:
        raise BuildError(
            "random samples need fixed shapes, and these inputs leave sizes open: "
            + ", ".join(map(str, open_inputs)),
            remedy=GIVE_PROMPTS if source.texts is not None else suggest_shapes(source),
        )
