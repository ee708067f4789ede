"""Outputs that hold two things of very different size, such as boxes (0…640) and scores (0…1).

Detectors write both into one tensor, [1, 84, 8400] say. Whatever is summed over all of it tells of
the boxes alone: a model whose scores are all zero keeps 99 % of the variance. So the channels of
such an output are told apart by the size of their values, and each group is judged by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edgepack.packager.judging.distance import OutputKind
from edgepack.packager.judging.measure import Outputs
from edgepack.packager.samples.sequence import Tensor

_GAP = 30.0
"""Sizes that differ by this factor, with none in between, are two things. The outlying dimensions
of language models differ from the others by less than 10."""

_MOST_CHANNELS = 1024
_TINY = 1e-6
"""Share of the largest channel's size below which a channel holds nothing."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some channels of an output.

    Attributes:
        output: The output.
        axis: Axis of the channels.
        channels: Their indices, ascending.
    """

    output: str
    axis: int
    channels: tuple[int, ...]

    @property
    def words(self) -> str:
        """E.g. `output0, channels 4…83`."""
        first, last = self.channels[0], self.channels[-1]
        if first == last:
            return f"{self.output}, channel {first}"
        is_run = last - first + 1 == len(self.channels)
        others = "" if is_run else f", {len(self.channels)} of them"
        return f"{self.output}, channels {first}…{last}{others}"

    def of(self, value: Tensor) -> Tensor:
        """The part's values of one output; all of it where its shape is not the expected one."""
        if value.ndim <= self.axis or value.shape[self.axis] <= self.channels[-1]:
            return value
        return np.take(value, self.channels, axis=self.axis)


def find_parts(expected: Sequence[Outputs], kinds: Mapping[str, OutputKind]) -> tuple[Part, ...]:
    """The parts of every output that holds values of several sizes.

    Args:
        expected: The float model's outputs, one dict a sample.
        kinds: What each output means; only values are looked at.
    """
    found: list[Part] = []
    for name, kind in kinds.items():
        values = [outputs[name] for outputs in expected]
        if kind is not OutputKind.VALUES or values[0].ndim < 3:
            continue
        axes = (1, values[0].ndim - 1) if values[0].ndim == 3 else (1,)
        for axis in axes:
            groups = _groups(_sizes(values, axis))
            if len(groups) > 1:
                found += [Part(output=name, axis=axis, channels=group) for group in groups]
                break
    return tuple(found)


def _sizes(values: Sequence[Tensor], axis: int) -> npt.NDArray[np.float64]:
    """Root-mean-square of each channel over all samples, padding left out.

    Empty where samples differ in shape.
    """
    count = values[0].shape[axis]
    same = all(value.ndim > axis and value.shape[axis] == count for value in values)
    if not same or not 2 <= count <= _MOST_CHANNELS:
        return np.zeros(0)
    squares, counts = np.zeros(count), np.zeros(count)
    for value in values:
        wide = np.moveaxis(value.astype(np.float64), axis, 0).reshape(count, -1)
        squares += np.nansum(wide**2, axis=1)
        counts += (~np.isnan(wide)).sum(axis=1)
    return np.sqrt(squares / np.maximum(counts, 1.0))


def _groups(sizes: npt.NDArray[np.float64]) -> list[tuple[int, ...]]:
    """Channels of like size, those with the largest values first; nothing where all are alike."""
    if not sizes.size or not np.isfinite(sizes).all():
        return []
    order = [int(i) for i in np.argsort(-sizes, kind="stable") if sizes[i] > _TINY * sizes.max()]
    groups: list[list[int]] = [order[:1]]
    for before, channel in pairwise(order):
        if sizes[before] > _GAP * sizes[channel]:
            groups.append([])
        groups[-1].append(channel)
    return [tuple(sorted(group)) for group in groups if group]
