"""Judges a detector by what it finds, against what the float model finds on the same samples."""

import copy
from collections.abc import Sequence

from edgepack.bundle.accuracy_words import describe_box_bias
from edgepack.number_format import format_metric
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.detections.agreement import (
    DetectionAgreement,
    count_boxes,
    measure_agreement,
)
from edgepack.tasks.detections.boxes import Boxes
from edgepack.tasks.detections.decoding import find_boxes
from edgepack.tasks.detections.layouts import DetectionHead
from edgepack.text import counted


class DetectionReference:
    """The float model's boxes on some samples: an `OutputReference`.

    Args:
        head: Where they are told, settled.
        expected: The float model's outputs, one dict a sample.
    """

    def __init__(self, head: DetectionHead, expected: Sequence[Outputs]) -> None:
        self.head = head
        self._outputs = tuple(expected)
        self._boxes: tuple[Boxes, ...] = tuple(find_boxes(head, outputs) for outputs in expected)
        named = head.facts.named
        self._count = sum(int((boxes.scores >= named).sum()) for boxes in self._boxes)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Those that tell boxes."""
        return self.head.outputs

    def budget(self, least: float) -> float:
        """Of few boxes one may always be missing, or be one too many."""
        return min(least, 1.0 - 1.0 / max(2 * self._count - 1, 1))

    def of(self, indices: Sequence[int]) -> "DetectionReference":
        """The same with some of the samples only."""
        shortened = copy.copy(self)
        shortened._outputs = tuple(self._outputs[index] for index in indices)
        shortened._boxes = tuple(self._boxes[index] for index in indices)
        return shortened

    def measure(self, got: Sequence[Outputs]) -> DetectionAgreement | None:
        """How well a candidate's boxes agree; None where the float model finds none at all."""
        layout = self.head.facts
        return measure_agreement(
            [
                count_boxes(boxes, boxes if given is own else find_boxes(self.head, given), layout)
                for boxes, own, given in zip(self._boxes, self._outputs, got, strict=True)
            ],
            layout,
        )


def describe_agreement(agreement: DetectionAgreement, budget: float) -> tuple[str, ...]:
    """How well boxes agree, in a sentence."""
    return (
        f"It keeps F1 {format_metric(agreement.value)} of the float model's boxes (budget "
        f"{format_metric(budget)}), {describe_bias(agreement)}, of "
        f"{counted(agreement.boxes, 'box', 'boxes')} in the held-out samples.",
    )


def describe_bias(agreement: DetectionAgreement) -> str:
    """Whether more or fewer boxes are found, and how sure that is."""
    sign = -1.0 if agreement.bias < 0.0 else 1.0
    low, high = sorted(100.0 * sign * bound for bound in (agreement.bias_low, agreement.bias_high))
    at = f"at threshold {agreement.named:g}".replace("0.", ".")
    if not agreement.bias_low and not agreement.bias_high:
        return f"as many boxes {at} in every sample"
    return f"{describe_box_bias(agreement.bias)} boxes {at} (95 %: {low:.1f} to {high:.1f} %)"
