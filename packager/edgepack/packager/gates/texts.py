"""Judges a reader by the texts that it reads, against the float model's on the same samples."""

import copy
from collections.abc import Sequence

from edgepack.number_format import format_metric
from edgepack.packager.metrics.output_kinds import with_one_miss
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.text.agreement import TextAgreement, measure_texts
from edgepack.tasks.text.costs import expected_cost
from edgepack.tasks.text.decoding import Text, read_text
from edgepack.tasks.text.head import TextHead
from edgepack.text import counted


class TextReference:
    """What the float model reads in some samples: an `OutputReference`.

    Args:
        head: Where text is told, settled.
        expected: The float model's outputs, one dict a sample.
    """

    def __init__(self, head: TextHead, expected: Sequence[Outputs]) -> None:
        self.outputs = head.outputs
        self._head = head
        self._expected = tuple(expected)
        self._texts: tuple[Text, ...] = tuple(read_text(head, outputs) for outputs in expected)
        self._count = sum(map(len, self._texts))

    def budget(self, least: float) -> float:
        """Of few characters one may always be another."""
        return with_one_miss(least, self._count)

    def of(self, indices: Sequence[int]) -> "TextReference":
        """The same with some of the samples only."""
        shortened = copy.copy(self)
        shortened._expected = tuple(self._expected[index] for index in indices)
        shortened._texts = tuple(self._texts[index] for index in indices)
        return shortened

    def measure(self, got: Sequence[Outputs]) -> TextAgreement | None:
        """How well a candidate's texts agree; None where the float model reads nothing at all."""
        texts = [read_text(self._head, outputs) for outputs in got]
        costs = [
            expected_cost(self._head, outputs, want, have)
            for outputs, want, have in zip(self._expected, self._texts, texts, strict=True)
        ]
        return measure_texts(self._texts, texts, costs)


def describe_texts(agreement: TextAgreement, budget: float) -> tuple[str, ...]:
    """How near its texts are, in a few sentences."""
    return (
        f"Of the {counted(agreement.characters, 'character')} that the float model reads it keeps "
        f"{format_metric(agreement.of_characters)}: {format_metric(agreement.unedited)} need no "
        "edit, and one costs the less the more the float model hesitated there. Of lines it keeps "
        f"{format_metric(agreement.of_lines)}: {describe_same(agreement)}. What it keeps less of "
        f"counts (budget {format_metric(budget)}).",
    )


def describe_same(agreement: TextAgreement) -> str:
    """How many are the same as a whole: `.9778 of 45 texts are the same (95 %: …)`."""
    bounds = f"{format_metric(agreement.same_low)} to {format_metric(agreement.same_high)}"
    return (
        f"{format_metric(agreement.same)} of {counted(agreement.count, 'text')} are the same as a "
        f"whole (95 %: {bounds})"
    )
