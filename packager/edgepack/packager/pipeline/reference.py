"""Reference distributions of a bundle, for drift on devices.

Inputs are taken from all samples, up to a number, and outputs from the held-out ones, of which the
float model's are known.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from edgepack.bundle.distributions import Values, describe_values, thin
from edgepack.bundle.metadata import MAX_DISTRIBUTIONS, MAX_TENSOR_NAME, Distribution
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.reference import FloatSource
from edgepack.packager.tensors.sequence import Feeds, SampleSplit
from edgepack.tasks.description import IGNORED

MOST_INPUTS = 128
MOST_OUTPUTS = 64
"""Samples that are looked at. Golden samples are chosen from as many."""

_EACH = MAX_DISTRIBUTIONS // 2


def describe_reference(
    source: SourceModel, split: SampleSplit, float_source: FloatSource
) -> tuple[Distribution, ...]:
    """Return the distributions of the first informative inputs and outputs.

    Args:
        source: The model.
        split: Its samples.
        float_source: Gives the float model's outputs.

    Raises:
        BuildError: The float model does not run on a sample.
    """
    parts = (split.held_out, split.search, split.calibration)
    inputs = islice((feeds for part in parts for feeds in part), MOST_INPUTS)
    unread = set(source.description.outputs_of(IGNORED))
    outputs = (
        {
            name: values
            for name, values in float_source(feeds).items()
            if name not in unread and name not in source.watched
        }
        for feeds in islice(split.held_out, MOST_OUTPUTS)
    )
    return (*islice(_describe(inputs), _EACH), *islice(_describe(outputs), _EACH))


def _describe(inferences: Iterable[Feeds]) -> Iterator[Distribution]:
    thinned: dict[str, list[Values]] = {}
    for tensors in inferences:
        for name, values in tensors.items():
            if values.dtype.kind in "biuf" and len(name) <= MAX_TENSOR_NAME:
                thinned.setdefault(name, []).append(thin(values))
    for name, parts in thinned.items():
        if (told := describe_values(name, np.concatenate(parts))) is not None:
            yield told
