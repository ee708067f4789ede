"""Outputs that hold two quantities of very different size, such as boxes (0…640) and scores (0…1).

Detectors write both into a single tensor, [1, 84, 8400] say. Any sum over the whole tensor
describes the boxes alone: a model with all scores zero keeps 99 % of the variance. So the channels
of such an output are separated, and each group is measured by itself: scores, which never leave
0…1, if the other channels take both signs (offsets from a grid) or are of another size; and the
other channels by the size of their values.

A box is read where something was found. Most of a detector's places have scores near 0, and a box
there is noise that nobody reads, like padding. So channels next to scores count only at places with
a notable best score of the float model. (A YOLOv8 with every node in 8 bits kept .88 of its boxes'
variance at all places, .98 weighted with the scores.) Boxes and scores in two outputs are handled
alike: an output with four numbers per place, and an output that is near 0 at most of the same
places.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from edgepack.tasks.arrays import Bools, Floats, Outputs, Tensor
from edgepack.tasks.detections.layouts import MARGIN, MOST_FOUND, THRESHOLDS

_GAP = 30.0
"""Sizes that differ by this factor, with none in between, are two things. The outlying dimensions
of language models differ from the others by less than 10. Scores that a few places have are up to
27 times as large as others (20 samples)."""

_READ_FROM = 0.05
"""Least score of a place whose other values are read: torchvision's detectors give none below."""

_FINDS = THRESHOLDS[0] - MARGIN
"""Score with which a detector has found something: the least one that is compared."""

_COORDINATES = 4

_MOST_CHANNELS = 1024
_MOST_RUNS = 4
_TINY = 2.0**-23
"""Share of the largest channel's size below which a channel is the rounding of 32-bit floats."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Part: some channels of an output.

    Attributes:
        output: The output.
        axis: Axis of the channels.
        channels: Their indices, ascending.
        scores: The channels that tell which places are read; empty where all are.
        scored_by: Another output with the scores of each place; "" without such an output.
        classes: Axis of that one's classes.
        is_found: Whether the output holds scores and other channels: then its parts cover the whole
            output.
    """

    output: str
    axis: int
    channels: tuple[int, ...]
    scores: tuple[int, ...] = ()
    scored_by: str = ""
    classes: int = 0
    is_found: bool = False

    @property
    def words(self) -> str:
        """E.g. `output0, channels 0…3 and 84`."""
        if self.scored_by:
            return f"{self.output}, where {self.scored_by} finds something"
        noun = "channel" if len(self.channels) == 1 else "channels"
        return f"{self.output}, {noun} {_describe_runs(self.channels)}"

    def of(self, outputs: Outputs) -> Tensor:
        """Return the part's values; the whole output's values if the shape is not the expected
        shape.
        """
        value = outputs[self.output]
        if value.ndim <= self.axis or value.shape[self.axis] <= self.channels[-1]:
            return value
        return np.take(value, self.channels, axis=self.axis)

    def read_in(self, expected: Sequence[Outputs]) -> tuple[Bools, ...] | None:
        """Return the mask of values of the part that are read.

        Args:
            expected: The float model's outputs, a dict per sample.

        Returns:
            A bool array per sample, in the shape of the part; None if all values are read, also if
            no place of any sample has a score.
        """
        if self.scored_by:
            best = [outputs[self.scored_by].max(self.classes) for outputs in expected]
        elif self.scores:
            values = (outputs[self.output] for outputs in expected)
            best = [np.take(value, self.scores, axis=self.axis).max(self.axis) for value in values]
        else:
            return None
        if not any((value >= _READ_FROM).any() for value in best):
            return None
        return tuple(
            np.broadcast_to(np.expand_dims(score >= _READ_FROM, self.axis), self.of(outputs).shape)
            for score, outputs in zip(best, expected, strict=True)
        )


def _describe_runs(channels: Sequence[int]) -> str:
    """Describe ascending numbers: `0…3, 7 and 84`; of many runs the first runs and the count."""
    starts = [i for i in channels if i - 1 not in channels]
    ends = [i for i in channels if i + 1 not in channels]
    runs = [
        f"{first}" if first == last else f"{first}…{last}"
        for first, last in zip(starts, ends, strict=True)
    ]
    if len(runs) > _MOST_RUNS:
        return f"{', '.join(runs[:_MOST_RUNS])} and others, {len(channels)} in all"
    return " and ".join(part for part in (", ".join(runs[:-1]), runs[-1]) if part)


def find_parts(expected: Sequence[Outputs], names: Sequence[str]) -> tuple[Part, ...]:
    """Return the parts of every output that holds values of several sizes.

    Args:
        expected: The float model's outputs, a dict per sample.
        names: Candidate outputs: outputs that may hold scores.
    """
    found: list[Part] = []
    for name in names:
        values = [outputs[name] for outputs in expected]
        if values[0].ndim < 3:
            continue
        axes = (1, values[0].ndim - 1) if values[0].ndim == 3 else (1,)
        for axis in axes:
            parts = _parts_of(name, axis, _channels(values, axis))
            if len(parts) > 1:
                found += parts
                break
    divided = {part.output for part in found}
    apart = {name: [outputs[name] for outputs in expected] for name in names if name not in divided}
    return (*found, *_boxes_apart(apart))


def boxes_in(expected: Sequence[Outputs], names: Sequence[str]) -> tuple[str, ...]:
    """Return the outputs that hold four numbers and scores for each place, as a detector's do.

    Args:
        expected: The float model's outputs, a dict per sample.
        names: Candidate outputs.
    """
    box = tuple(range(_COORDINATES))
    return tuple(
        part.output
        for part in find_parts(expected, names)
        if part.channels == box and (part.scored_by or _find_few(part, expected))
    )


def _find_few(part: Part, expected: Sequence[Outputs]) -> bool:
    """Return whether the part lies beside scores that are near 0 at most places."""
    values = [outputs[part.output] for outputs in expected]
    scores = [np.take(value, part.scores, axis=part.axis) for value in values]
    return bool(part.scores) and _are_scores(scores, part.axis)


def _boxes_apart(outputs: Mapping[str, Sequence[Tensor]]) -> list[Part]:
    """Return outputs of boxes with scores in a separate output; none if several outputs are
    possible.

    Args:
        outputs: By name the float model's values, an array per sample.
    """
    pairs = [
        (box, score, classes)
        for box, values in outputs.items()
        for score, others in outputs.items()
        if box != score
        and (classes := _classes_axis(values, others)) is not None
        and _are_scores(others, classes)
    ]
    scores = [score for _, score, _ in pairs]
    boxes = [box for box, _, _ in pairs]
    return [
        Part(
            output=box,
            axis=outputs[box][0].ndim - 1,
            channels=tuple(range(_COORDINATES)),
            scored_by=score,
            classes=classes,
            is_found=True,
        )
        for box, score, classes in pairs
        if boxes.count(box) == 1 and scores.count(score) == 1 and box not in scores
    ]


def _classes_axis(boxes: Sequence[Tensor], others: Sequence[Tensor]) -> int | None:
    """Return the axis of classes in an output with the same places as an output of boxes; None for
    other outputs.

    Places come before coordinates; classes after the places, or before the places as in
    NonMaxSuppression's inputs.
    """
    wanted = [value.shape for value in boxes]
    shapes = [value.shape for value in others]
    if any(len(shape) < 2 or shape[-1] != _COORDINATES for shape in wanted):
        return None
    if [shape[:-1] for shape in shapes] == [shape[:-1] for shape in wanted]:
        return len(shapes[0]) - 1
    if {len(shape) for shape in (*wanted, *shapes)} != {3}:
        return None
    turned = [(shape[0], shape[2]) for shape in shapes]
    return 1 if turned == [shape[:2] for shape in wanted] else None


def _are_scores(values: Sequence[Tensor], classes: int) -> bool:
    """Return True if values never leave 0…1, find something, and are near 0 at most places."""
    if min(value.size for value in values) == 0:
        return False
    best = [value.max(classes) for value in values]
    least = min(float(value.min()) for value in values)
    greatest = max(float(value.max()) for value in best)
    read = float(np.mean(np.concatenate([value.ravel() for value in best]) >= _READ_FROM))
    return least >= 0.0 and _FINDS <= greatest <= 1.0 and read <= MOST_FOUND


class _Channels(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of each channel of an output.

    Attributes:
        sizes: float64 (channels,), root-mean-square over all samples, padding left out.
        least, greatest: float64 (channels,), of all samples.
    """

    sizes: Floats
    least: Floats
    greatest: Floats


def _channels(values: Sequence[Tensor], axis: int) -> _Channels | None:
    """Return the statistics; None for unlike shapes, or for too few or too many channels."""
    count = values[0].shape[axis]
    same = all(value.ndim > axis and value.shape[axis] == count for value in values)
    if not same or not 2 <= count <= _MOST_CHANNELS:
        return None
    squares, counts = np.zeros(count), np.zeros(count)
    least, greatest = np.full(count, np.inf), np.full(count, -np.inf)
    for value in filter(np.size, values):  # a sample may find nothing
        wide = np.moveaxis(value.astype(np.float64), axis, 0).reshape(count, -1)
        squares += np.nansum(wide**2, axis=1)
        counts += (~np.isnan(wide)).sum(axis=1)
        least = np.fmin(least, np.fmin.reduce(wide, axis=1))
        greatest = np.fmax(greatest, np.fmax.reduce(wide, axis=1))
    sizes = np.sqrt(squares / np.maximum(counts, 1.0))
    return _Channels(sizes=sizes, least=least, greatest=greatest)


def _parts_of(name: str, axis: int, channels: _Channels | None) -> list[Part]:
    """Return the parts of an output along an axis; at most 1 part if all channels are alike."""
    if channels is None or not np.isfinite(channels.sizes).all():
        return []
    scores = _scores(channels)
    others = [i for i in range(len(channels.sizes)) if i not in scores]
    parts = [
        Part(output=name, axis=axis, channels=group, scores=scores, is_found=bool(scores))
        for group in _groups(channels.sizes, others)
    ]
    if scores:
        parts.append(Part(output=name, axis=axis, channels=scores, is_found=True))
    return parts


def _scores(channels: _Channels) -> tuple[int, ...]:
    """Return channels that never leave 0…1, if other channels do and are of another kind or size.

    Other channels are of another kind if all take both signs, and a channel within 0…1 is high at
    few places and near 0 elsewhere: a channel that hardly leaves its own bias lies within by
    chance.
    """
    sizes = channels.sizes
    within = (channels.least >= 0.0) & (channels.greatest <= 1.0) & (sizes > 0.0)
    others = ~within & (sizes > _TINY * sizes.max())
    if not within.any() or not others.any():
        return ()
    is_signed = bool((channels.least[others] < 0.0).all() and (channels.greatest[others] > 0).all())
    finds_nothing = channels.least <= _READ_FROM * channels.greatest
    is_signed &= bool((within & finds_nothing & (channels.greatest >= _FINDS)).any())
    is_larger = bool(sizes[others].min() > _GAP * sizes[within].max())
    return tuple(map(int, np.flatnonzero(within))) if is_signed or is_larger else ()


def _groups(sizes: Floats, among: Sequence[int]) -> list[tuple[int, ...]]:
    """Group channels by size, largest values first; return a single group if all are alike.

    Args:
        sizes: Of all channels.
        among: The channels to divide.
    """
    largest = sizes[list(among)].max(initial=0.0)
    order = sorted((i for i in among if sizes[i] > _TINY * largest), key=lambda i: (-sizes[i], i))
    groups: list[list[int]] = [order[:1]]
    for before, channel in pairwise(order):
        if sizes[before] > _GAP * sizes[channel]:
            groups.append([])
        groups[-1].append(channel)
    return [tuple(sorted(group)) for group in groups if group]
