"""Reference features of a bundle, for drift on devices.

Inputs are sketched on all samples, outputs on the held-out samples and the samples for choosing:
the search runs the float model on these anyway.

A device has no labels, but it sees its confidence fall. A float model loses confidence and right
answers together; by how much differs by model. So a build spoils samples in several ways and
strengths, and compares the float model's answers and confidence with these on the whole samples.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

import msgspec
import numpy as np

from edgepack.bundle.drift import confidences, draw_features, sketch_outputs, sketched_parts
from edgepack.bundle.features import CONFIDENCE
from edgepack.bundle.metadata import MAX_FEATURES, MAX_TENSOR_NAME, Feature
from edgepack.errors import BuildError
from edgepack.packager.pipeline.text_reference import draw_text_reference
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.reference import FloatSource
from edgepack.packager.tensors.sequence import Feeds, SampleSplit
from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.sketch import Sketch, are_names, sketch_input, thin_input
from edgepack.tasks.table import task_of

MOST_SAMPLES = 128

_MOST_TENSORS = 8
"""Inputs, and parts of outputs, that are sketched."""


SPOILT_SAMPLES = 16
"""Samples that are spoilt; each runs once for each way and strength."""

_LEAST_FALL = 0.01
"""Mean fall of the confidence from which on a way of spoiling tells."""

_MOST_LOSS = 1_000.0

Way = Callable[[Tensor, Tensor], Tensor]
"""Spoils a tensor, given the same tensor of the next sample."""


def draw_reference(
    source: SourceModel, split: SampleSplit, float_source: FloatSource
) -> tuple[Feature, ...]:
    """Return the features of the first inputs and of the first parts of outputs, or of texts.

    Args:
        source: The model.
        split: Its samples.
        float_source: Gives the float model's outputs.

    Raises:
        BuildError: The float model does not run on a sample.
    """
    if source.texts is not None and split.held_out.are_texts:
        return tuple(draw_text_reference(source.texts, split, float_source.run_unknown))
    drawn = chain(_draw_inputs(split), _draw_outputs(source, split, float_source))
    return tuple(islice(drawn, MAX_FEATURES))


def _draw_inputs(split: SampleSplit) -> Iterator[Feature]:
    samples = (split.held_out, split.search, split.calibration)
    thinned: dict[str, list[Tensor]] = {}
    for feeds in islice((feeds for part in samples for feeds in part), MOST_SAMPLES):
        for name, value in feeds.items():
            if value.dtype.kind in "biuf" and len(name) <= MAX_TENSOR_NAME:
                thinned.setdefault(name, []).append(thin_input(value))
    known = [name for name, values in thinned.items() if not are_names(values)]
    for name in known[:_MOST_TENSORS]:
        sketches = [sketch_input(value) for value in thinned[name]]
        yield from draw_features(name, sketches, f" of '{name}'")


def _draw_outputs(
    source: SourceModel, split: SampleSplit, float_source: FloatSource
) -> Iterator[Feature]:
    watched = source.watched
    description = split.held_out.description.without(watched)
    parts = [
        part for part in sketched_parts(description) if len(part.outputs[0]) <= MAX_TENSOR_NAME
    ][:_MOST_TENSORS]
    sketches: Sequence[list[Sketch]] = [[] for _ in parts]
    samples = (feeds for part in (split.held_out, split.search) for feeds in part)
    first: list[tuple[Feeds, Outputs]] = []
    for feeds in islice(samples, MOST_SAMPLES):
        outputs = float_source(feeds)
        if len(first) < SPOILT_SAMPLES:
            first.append((feeds, outputs))
        for part, found in zip(parts, sketches, strict=True):
            sketch = sketch_outputs(part, outputs)
            if sketch is not None:
                found.append(sketch)
    for part, found in zip(parts, sketches, strict=True):
        of = f" of '{part.outputs[0]}'" if len(parts) > 1 else ""
        for feature in draw_features(part.outputs[0], found, of) if found else ():
            if feature.name == CONFIDENCE:
                loss = loss_by_confidence(part, first, float_source.run_unknown)
                feature = msgspec.structs.replace(feature, loss_by_confidence=loss)
            yield feature


def loss_by_confidence(
    part: TaskOutputs, samples: Sequence[tuple[Feeds, Outputs]], run: Callable[[Feeds], Outputs]
) -> float | None:
    """Return the share of the task that is lost for each unit of fallen confidence.

    The float model's answers on whole samples count as right as often as their confidence says.

    Args:
        part: Outputs of a task with a confidence.
        samples: Inputs with the float model's outputs.
        run: Runs the float model.

    Returns:
        The ratio of losses to falls over all ways that lower the confidence; None without any.
    """
    expected = [outputs for _, outputs in samples]
    before = confidences(part, expected)
    if not before:
        return None
    opened = task_of(part).open(part, expected)
    falls, losses = 0.0, 0.0
    for spoilt in spoil([feeds for feeds, _ in samples]):
        try:
            outputs = [run(feeds) for feeds in spoilt]
        except BuildError:  # Mixed values can contradict each other, for example lengths.
            continue
        after = confidences(part, outputs)
        fall = float(np.mean(before) - np.mean(after)) if after else 0.0
        if fall > _LEAST_FALL:
            falls += fall
            losses += float(np.mean(before)) * (1.0 - opened.measure(outputs).value)
    return min(losses / falls, _MOST_LOSS) if falls else None


def spoil(samples: Sequence[Feeds]) -> Iterator[list[Feeds]]:
    """Yield the samples spoilt in several ways and strengths, each time all of them.

    Floats get noise, less contrast and, as pictures, blur. Of all inputs, values are replaced by
    values of the next sample at the same places.
    """
    rng = np.random.default_rng(0)
    ways = (
        _noise(rng, 0.3),
        _noise(rng, 0.6),
        _fade(0.7),
        _blur(7),
        _mix(rng, 0.15),
        _mix(rng, 0.4),
    )
    for way in ways:
        spoilt = [
            {name: way(value, other[name]) if value.size else value for name, value in one.items()}
            for one, other in zip(samples, (*samples[1:], samples[0]), strict=True)
        ]
        if any(
            not np.array_equal(before[name], after[name])
            for before, after in zip(samples, spoilt, strict=True)
            for name in before
        ):
            yield spoilt


def _noise(rng: np.random.Generator, share: float) -> Way:
    def way(value: Tensor, _other: Tensor) -> Tensor:
        if value.dtype.kind != "f":
            return value
        noise = rng.standard_normal(value.shape) * share * _spread(value)
        return (value.astype(np.float64) + noise).astype(value.dtype)

    return way


def _fade(share: float) -> Way:
    """Return a way that makes a sample darker: its values move to its least value."""

    def way(value: Tensor, _other: Tensor) -> Tensor:
        if value.dtype.kind != "f":
            return value
        least = value.min()
        return np.asarray(least + (value - least) * (1.0 - share)).astype(value.dtype)

    return way


def _blur(width: int) -> Way:
    """Return a way that averages pictures, (…, rows, columns), over a square."""

    def way(value: Tensor, _other: Tensor) -> Tensor:
        if value.dtype.kind != "f" or value.ndim < 3 or min(value.shape[-2:]) < 8:
            return value
        wide: Floats = value.astype(np.float64)
        steps = range(-(width // 2), width // 2 + 1)
        for axis in (-2, -1):
            wide = np.mean([np.roll(wide, step, axis) for step in steps], axis=0)
        return wide.astype(value.dtype)

    return way


def _mix(rng: np.random.Generator, share: float) -> Way:
    def way(value: Tensor, other: Tensor) -> Tensor:
        if value.shape != other.shape or value.size < 2:
            return value
        return np.where(rng.random(value.shape) < share, other, value)

    return way


def _spread(value: Tensor) -> float:
    spread = float(np.std(value.astype(np.float64))) if value.size else 0.0
    return spread if math.isfinite(spread) else 0.0
