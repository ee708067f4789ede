"""Measure of a reader of pages by its lines, against the float model's on the same samples.

A line of the float model is paired with the line whose box overlaps most. Lost lines and lines that
the float model does not read count with all their characters.
"""

import copy
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from edgepack.number_format import format_metric
from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.classification.measure import one_miss
from edgepack.tasks.contract import Agreement, Measure, Scale, Task, agree
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.details import SAME_TEXTS, bounded
from edgepack.tasks.sketch import Sketch
from edgepack.tasks.text.agreement import measure_texts
from edgepack.tasks.text.costs import Cost
from edgepack.tasks.text.decoding import Text
from edgepack.tasks.text.edits import edit_distance
from edgepack.text import counted

NAME = "pages"
"""The task of pipelines: a single graph gives no texts."""

LINES = Scale(metric="line_agreement", least=0.99)

_BOXES_AND_TEXTS = 2

_LEAST_OVERLAP = 0.5
"""Intersection over union of the boxes of a line, upright."""


class Line(NamedTuple):
    """Line of a page.

    Attributes:
        text: Unicode's code points.
        corners: float64 (4, 2), pixels of the picture, clockwise from the upper left corner.
        score: 0 … 1; 1 where the model gives no scores.
    """

    text: Text
    corners: Floats
    score: float


def read_lines(part: TaskOutputs, outputs: Outputs) -> tuple[Line, ...]:
    """Return the lines that outputs hold.

    Args:
        part: Names boxes, texts and, where there are any, scores, in this order.
        outputs: The outputs of an inference.

    Raises:
        ValueError: The outputs do not have a row for each line.
    """
    if len(part.outputs) < _BOXES_AND_TEXTS:
        raise ValueError(f"pages have boxes and texts, not the output '{part.outputs[0]}' alone")
    boxes, texts, *more = (outputs[name] for name in part.outputs)
    scores = more[0] if more else np.ones(len(boxes))
    is_odd = boxes.shape[1:] != (4, 2) or texts.ndim != 2 or scores.ndim != 1
    if is_odd or not len(boxes) == len(texts) == len(scores):
        raise ValueError(
            f"boxes {list(boxes.shape)}, texts {list(texts.shape)} and scores "
            f"{list(scores.shape)} do not have a row for each line"
        )
    return tuple(
        Line(tuple(row[row > 0].tolist()), np.asarray(corners, np.float64), float(score))
        for corners, row, score in zip(boxes, texts, scores, strict=True)
    )


class ReadPages:
    """The float model's lines on some samples: an `Expected`.

    Args:
        part: Which outputs tell lines.
        expected: The float model's outputs, a dict per sample.
    """

    def __init__(self, part: TaskOutputs, expected: Sequence[Outputs]) -> None:
        self._part = part
        self._pages = tuple(read_lines(part, one) for one in expected)
        self._count = sum(map(len, self._pages))

    def of(self, indices: Sequence[int]) -> Self:
        """Return the comparison of some samples, with the tolerated differences of all samples."""
        shortened = copy.copy(self)
        shortened._pages = tuple(self._pages[index] for index in indices)
        return shortened

    def measure(self, got: Sequence[Outputs]) -> Agreement:
        """Measure the lines in other outputs."""
        wants: list[Text] = []
        haves: list[Text] = []
        losses = []
        for page, outputs in zip(self._pages, got, strict=True):
            pairs = pair_lines(page, self._read(outputs))
            wants += [want for want, _ in pairs]
            haves += [have for _, have in pairs]
            edits = sum(min(edit_distance(*pair), max(len(pair[0]), 1)) for pair in pairs)
            losses.append(min(edits / max(sum(len(want) for want, _ in pairs), 1), 1.0))
        costs = [
            Cost(edits=float(edit_distance(*pair)), whole=float(pair[0] != pair[1]))
            for pair in zip(wants, haves, strict=True)
        ]
        found = measure_texts(wants, haves, costs)
        if found is None:
            return self._of_nothing(haves, losses)
        measure = Measure(
            scale=LINES,
            value=found.value,
            low=found.low,
            words=f"{format_metric(found.value)} of what the float model reads, "
            f"{counted(found.count, 'line')}, {format_metric(found.same)} the same",
            may_differ=one_miss(self._count),
            bounds=found.bounds,
            low_as_seen=found.low_as_seen,
        )
        note = (
            f"Of {counted(found.count, 'line')} with {counted(found.characters, 'character')} that "
            f"the float model reads, {format_metric(found.same)} are the same; "
            f"{format_metric(found.unedited)} of the characters need no edit."
        )
        return agree(
            TASK.name,
            [measure],
            np.array(losses),
            words=measure.words,
            notes=(note,),
            details=bounded(SAME_TEXTS, found.same, found.same_low, found.same_high),
        )

    def _read(self, outputs: Outputs) -> tuple[Line, ...]:
        try:
            return read_lines(self._part, outputs)
        except ValueError:
            return ()

    def _of_nothing(self, haves: Sequence[Text], losses: Sequence[float]) -> Agreement:
        value = 0.0 if any(haves) else 1.0
        measure = Measure(scale=LINES, value=value)
        doubt = "the float model reads no line"
        return agree(TASK.name, [measure], np.array(losses), doubt=doubt)


def pair_lines(wanted: Sequence[Line], found: Sequence[Line]) -> list[tuple[Text, Text]]:
    """Return the texts of lines in one place; the text of a line without a partner is paired
    with an empty text.
    """
    overlaps = _overlaps([one.corners for one in wanted], [one.corners for one in found])
    left = set(range(len(found)))
    pairs: list[tuple[Text, Text]] = []
    for row, line in enumerate(wanted):
        best = max(left, key=lambda one: overlaps[row, one], default=None)
        if best is None or overlaps[row, best] < _LEAST_OVERLAP:
            pairs.append((line.text, ()))
            continue
        left.remove(best)
        pairs.append((line.text, found[best].text))
    return pairs + [((), found[one].text) for one in sorted(left)]


def _overlaps(wanted: Sequence[Floats], found: Sequence[Floats]) -> Floats:
    """Return intersection over union of upright boxes, float64 (wanted, found)."""
    one, other = (_upright(boxes) for boxes in (wanted, found))
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).prod(axis=-1) for boxes in (one, other)]
    return np.asarray(shared / np.maximum(areas[0][:, None] + areas[1][None] - shared, 1e-9))


def _upright(boxes: Sequence[Floats]) -> Floats:
    corners: Tensor = np.array(boxes, np.float64).reshape(-1, 4, 2)
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).astype(np.float64)


class Pages(Task):
    """Lines of text with boxes: a `Task`."""

    name = NAME
    words = "what the float model reads, line by line"
    items = "lines"
    is_decision = True

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> ReadPages:
        """Prepare the comparison with the float model's outputs, a dict per sample."""
        return ReadPages(part, expected)

    def sketch(self, part: TaskOutputs, outputs: Outputs) -> Sketch:
        """Return the number of lines, their mean length, and the mean of their scores."""
        try:
            lines = read_lines(part, outputs)
        except ValueError:
            return Sketch()
        numbers = {"lines in a page": float(len(lines))}
        if not lines:
            return Sketch(numbers=numbers)
        numbers["length of a line"] = float(np.mean([len(line.text) for line in lines]))
        return Sketch(numbers=numbers, confidence=float(np.mean([line.score for line in lines])))


TASK = Pages()
