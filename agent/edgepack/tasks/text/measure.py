"""Measure of a text recognizer by its texts, against the float model's on the same samples."""

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np
from msgspec.structs import replace

from edgepack.number_format import format_metric
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.classification.measure import one_miss
from edgepack.tasks.contract import Agreement, Measure, Scale, Task, agree
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.details import SAME_TEXTS, bounded
from edgepack.tasks.sketch import Sketch
from edgepack.tasks.text.agreement import TextAgreement, measure_texts
from edgepack.tasks.text.costs import expected_cost
from edgepack.tasks.text.decoding import Text, read_text, shares_of
from edgepack.tasks.text.head import TextHead
from edgepack.tasks.unknown.measure import TASK as UNKNOWN_TASK
from edgepack.text import counted

STRINGS = Scale(metric="string_agreement", least=0.99)


class ReadTexts:
    """The float model's texts on some samples: an `Expected`.

    Args:
        part: Which output tells text, settled.
        expected: The float model's outputs, a dict per sample.
    """

    def __init__(self, part: TaskOutputs, expected: Sequence[Outputs]) -> None:
        self._head = TextHead.of(part)
        self._expected = tuple(expected)
        self._texts: tuple[Text, ...] = tuple(read_text(self._head, one) for one in expected)
        self._count = sum(map(len, self._texts))
        self._values = UNKNOWN_TASK.open(part.without_settings(), expected)

    def of(self, indices: Sequence[int]) -> Self:
        """Return the comparison of some samples, with the tolerated differences of all samples."""
        shortened = copy.copy(self)
        shortened._expected = tuple(self._expected[index] for index in indices)
        shortened._texts = tuple(self._texts[index] for index in indices)
        shortened._values = self._values.of(indices)
        return shortened

    def measure(self, got: Sequence[Outputs]) -> Agreement:
        """Measure the texts in other outputs; their values where the float model reads nothing."""
        name = self._head.output
        read = [outputs.get(name) for outputs in got]
        is_read = [
            value is not None and value.ndim == want[name].ndim
            for value, want in zip(read, self._expected, strict=True)
        ]
        texts: list[Text] = [
            read_text(self._head, outputs) if can_be_read else ()
            for outputs, can_be_read in zip(got, is_read, strict=True)
        ]
        costs = [
            expected_cost(self._head, outputs, want, have)
            for outputs, want, have in zip(self._expected, self._texts, texts, strict=True)
        ]
        found = measure_texts(self._texts, texts, costs)
        if found is None:
            doubt = "the float model reads no text, so its values are measured"
            return replace(self._values.measure(got), doubt=doubt)
        measure = Measure(
            scale=STRINGS,
            value=found.value,
            low=found.low,
            words=f"{format_metric(found.value)} of what the float model reads "
            f"({describe_same(found)})",
            may_differ=one_miss(self._count),
            bounds=found.bounds,
            low_as_seen=found.low_as_seen,
        )
        losses = np.array([min(max(cost.edits, cost.whole), 1.0) for cost in costs])
        return agree(
            TASK.name,
            [measure],
            losses,
            words=measure.words,
            notes=(describe_texts(found),),
            details=bounded(SAME_TEXTS, found.same, found.same_low, found.same_high),
        )


def describe_texts(agreement: TextAgreement) -> str:
    """Return how near texts are, in a few sentences."""
    return (
        f"Of the {counted(agreement.characters, 'character')} that the float model reads it keeps "
        f"{format_metric(agreement.of_characters)}: {format_metric(agreement.unedited)} need no "
        "edit, and one costs the less the more the float model hesitated there. Of lines it keeps "
        f"{format_metric(agreement.of_lines)}: {describe_same(agreement)}. What it keeps less of "
        "counts."
    )


def describe_same(agreement: TextAgreement) -> str:
    """Return how many are the same as a whole: `.9778 of 45 texts are the same (95 %: …)`."""
    bounds = f"{format_metric(agreement.same_low)} to {format_metric(agreement.same_high)}"
    return (
        f"{format_metric(agreement.same)} of {counted(agreement.count, 'text')} are the same as a "
        f"whole (95 %: {bounds})"
    )


class Texts(Task):
    """Text that a model reads: a `Task`."""

    name = "text"
    words = "what the float model reads, by characters and by lines"
    items = "texts"
    is_decision = True

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> ReadTexts:
        """Prepare the comparison with the float model's outputs, a dict per sample."""
        return ReadTexts(part, expected)

    def sketch(self, part: TaskOutputs, outputs: Outputs) -> Sketch:
        """Return the length of the text in characters, and the confidence of its characters."""
        head = TextHead.of(part)
        value = outputs[head.output]
        length = {"length of the text": float(len(read_text(head, outputs)))}
        if value.dtype.kind != "f" or not value.size:
            return Sketch(numbers=length)
        shares = shares_of(value)
        is_character = shares.argmax(axis=-1) != head.blank
        best = shares.max(axis=-1)[is_character]
        confidence = float(best.mean()) if best.size else None
        return Sketch(numbers=length, confidence=confidence)


TASK = Texts()
