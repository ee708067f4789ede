"""Reference features of a bundle, for drift on devices.

Inputs are sketched on all samples, outputs on the held-out samples and the samples for choosing:
the search runs the float model on these anyway.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

import msgspec

from edgepack.bundle.drift import draw_features, sketch_outputs, sketched_parts
from edgepack.bundle.features import CONFIDENCE
from edgepack.bundle.metadata import MAX_FEATURES, MAX_TENSOR_NAME, Feature
from edgepack.packager.pipeline.spoilt import SPOILT_SAMPLES, loss_by_confidence
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.reference import FloatSource
from edgepack.packager.tensors.sequence import Feeds, SampleSplit
from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.sketch import Sketch, are_names, sketch_input, thin_input

MOST_SAMPLES = 128

_MOST_TENSORS = 8
"""Inputs, and parts of outputs, that are sketched."""


def draw_reference(
    source: SourceModel, split: SampleSplit, float_source: FloatSource
) -> tuple[Feature, ...]:
    """Return the features of the first inputs and of the first parts of outputs.

    Args:
        source: The model.
        split: Its samples.
        float_source: Gives the float model's outputs.

    Raises:
        BuildError: The float model does not run on a sample.
    """
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
