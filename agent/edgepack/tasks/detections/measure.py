"""Measure of a detector: its boxes against the float model's on the same samples."""

import copy
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from msgspec.structs import replace

from edgepack.number_format import format_metric
from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.contract import Agreement, Measure, Scale, Task, agree
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.details import BOX_BIAS, BOX_PLACES, BOX_THRESHOLD, bounded, describe_box_bias
from edgepack.tasks.detections.agreement import (
    Counts,
    DetectionAgreement,
    count_boxes,
    measure_agreement,
    measure_places,
)
from edgepack.tasks.detections.boxes import NONE, Boxes
from edgepack.tasks.detections.decoding import PICTURE_BITS, find_boxes
from edgepack.tasks.detections.layouts import DetectionHead
from edgepack.tasks.one_output import NOTHING
from edgepack.tasks.sketch import Sketch
from edgepack.tasks.unknown.measure import TASK as UNKNOWN_TASK
from edgepack.text import counted

F1 = Scale(metric="detection_f1", least=0.99)


class FoundBoxes:
    """The float model's boxes on some samples: an `Expected`.

    Args:
        part: Which outputs tell boxes, settled.
        expected: The float model's outputs, a dict per sample.
    """

    def __init__(self, part: TaskOutputs, expected: Sequence[Outputs]) -> None:
        self._head = DetectionHead.of(part)
        self._outputs = tuple(expected)
        self._boxes: tuple[Boxes, ...] = tuple(find_boxes(self._head, one) for one in expected)
        named = self._head.facts.named
        self._count = sum(int((boxes.scores >= named).sum()) for boxes in self._boxes)
        self._values = UNKNOWN_TASK.open(part.without_settings(), expected)

    def of(self, indices: Sequence[int]) -> Self:
        """Return the comparison of some samples, with the tolerated differences of all samples."""
        shortened = copy.copy(self)
        shortened._outputs = tuple(self._outputs[index] for index in indices)
        shortened._boxes = tuple(self._boxes[index] for index in indices)
        shortened._values = self._values.of(indices)
        return shortened

    def measure(self, got: Sequence[Outputs]) -> Agreement:
        """Measure the boxes in other outputs; their values where the float model finds nothing."""
        layout = self._head.facts
        counts = [
            count_boxes(boxes, boxes if given is own else self._find(own, given), layout)
            for boxes, own, given in zip(self._boxes, self._outputs, got, strict=True)
        ]
        found = measure_agreement(counts, layout)
        if found is None:
            doubt = "the float model finds no boxes, so its values are measured"
            return replace(self._values.measure(got), doubt=doubt)
        measure = Measure(
            scale=F1,
            value=found.value,
            low=found.low,
            words=f"F1 {format_metric(found.value)} of the float model's boxes "
            f"({describe_bias(found)})",
            may_differ=1.0 / max(2 * self._count - 1, 1),
        )
        return agree(
            TASK.name,
            [measure],
            np.array([_lost(one) for one in counts]),
            words=measure.words,
            notes=(describe_agreement(found),),
            details={
                **bounded(BOX_BIAS, found.bias, found.bias_low, found.bias_high),
                BOX_THRESHOLD: found.named,
                **({BOX_PLACES: measure_places(counts)} if layout.is_placed else {}),
            },
        )

    def _find(self, own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> Boxes:
        """Return the boxes in outputs that may lack some, or have other axes."""
        outputs = {name: given.get(name, NOTHING) for name in self._head.outputs}
        if any(value.ndim != own[name].ndim for name, value in outputs.items()):
            return NONE
        return find_boxes(self._head, outputs)


def _lost(counts: Counts) -> float:
    """Return one minus F1 of a sample's boxes, the mean over thresholds with boxes."""
    whole = counts.expected + counts.got
    if not whole.any():
        return 0.0
    set_off = np.minimum(counts.come, counts.gone)
    lost = whole - 2.0 * counts.paired - 2.0 * set_off
    return float((lost[whole > 0] / whole[whole > 0]).mean())


def describe_agreement(agreement: DetectionAgreement) -> str:
    """Return how well boxes agree, in a sentence."""
    return (
        f"It keeps F1 {format_metric(agreement.value)} of the float model's boxes, "
        f"{describe_bias(agreement)}, of {counted(agreement.boxes, 'box', 'boxes')} in the "
        "held-out samples."
    )


def describe_bias(agreement: DetectionAgreement) -> str:
    """Return whether more or fewer boxes are found, and how sure that is."""
    sign = -1.0 if agreement.bias < 0.0 else 1.0
    low, high = sorted(100.0 * sign * bound for bound in (agreement.bias_low, agreement.bias_high))
    at = f"at threshold {agreement.named:g}".replace("0.", ".")
    if not agreement.bias_low and not agreement.bias_high:
        return f"as many boxes {at} in every sample"
    return f"{describe_box_bias(agreement.bias)} boxes {at} (95 %: {low:.1f} to {high:.1f} %)"


class Detections(Task):
    """Boxes of objects: a `Task`."""

    name = "detections"
    words = "F1 of the float model's boxes"
    items = "boxes"
    is_decision = True

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> FoundBoxes:
        """Prepare the comparison with the float model's outputs, a dict per sample."""
        return FoundBoxes(part, expected)

    def sketch(self, part: TaskOutputs, outputs: Outputs) -> Sketch:
        """Return the number of boxes of each class in a picture, and the mean of their scores."""
        head = DetectionHead.of(part)
        boxes = find_boxes(head, outputs)
        boxes = boxes.pick(boxes.scores >= head.facts.named)
        first = outputs[head.outputs[0]]
        pictures = first.shape[0] if first.ndim > head.facts.rank else 1
        classes, counts = np.unique(boxes.classes % (1 << PICTURE_BITS), return_counts=True)
        return Sketch(
            shares={
                part.class_name(kind): count / max(pictures, 1)
                for kind, count in zip(classes.tolist(), counts.tolist(), strict=True)
            },
            share_words="boxes of {} in a picture",
            confidence=float(boxes.scores.mean()) if len(boxes) else None,
        )


TASK = Detections()
