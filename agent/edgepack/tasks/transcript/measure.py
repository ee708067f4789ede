"""Measure of texts of tokens by their words, against the float model's on the same samples.

The word error is the number of words to replace, insert or delete, as a share of the float model's
words. Tokens are chosen already, so nothing tells how sure the float model was: each edit counts.
"""

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np

from edgepack.number_format import format_metric
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.classification.measure import one_miss
from edgepack.tasks.contract import Agreement, Measure, Scale, Task, agree
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.details import SAME_TEXTS, bounded
from edgepack.tasks.intervals import independent, kept_low, share_bounds, share_low
from edgepack.tasks.sketch import Sketch
from edgepack.tasks.text.edits import edit_distance
from edgepack.tasks.tokens.sketch import share_groups
from edgepack.tasks.transcript.words import Word, WordReader
from edgepack.text import counted

NAME = "transcript"

SCALES = {unit: Scale(metric=f"{unit}_accuracy", least=0.99) for unit in ("word", "token")}
"""By unit: 1 less the word error, as word accuracy is defined."""


class Transcripts:
    """The float model's texts on some samples: an `Expected`.

    Args:
        part: The output with tokens.
        expected: The float model's outputs, a dict per sample.
    """

    def __init__(self, part: TaskOutputs, expected: Sequence[Outputs]) -> None:
        self._output = part.outputs[0]
        self._reader = WordReader(part)
        self._texts = tuple(self._reader.read(one.get(self._output)) for one in expected)
        self._count = sum(map(len, self._texts))

    def of(self, indices: Sequence[int]) -> Self:
        """Return the comparison of some samples, with the tolerated differences of all samples."""
        shortened = copy.copy(self)
        shortened._texts = tuple(self._texts[index] for index in indices)
        return shortened

    def measure(self, got: Sequence[Outputs]) -> Agreement:
        """Measure the texts in other outputs."""
        texts = [self._reader.read(one.get(self._output)) for one in got]
        edits = [count_edits(*pair) for pair in zip(self._texts, texts, strict=True)]
        sizes = [float(max(len(text), 1)) for text in self._texts]
        losses = np.array(edits) / np.array(sizes)
        unit, scale = self._reader.unit, SCALES[self._reader.unit]
        count = sum(map(len, self._texts))
        if not count:
            measure = Measure(scale=scale, value=1.0 - float(losses.mean()))
            doubt = "the float model writes no text"
            return agree(NAME, [measure], losses, doubt=doubt)
        value = 1.0 - sum(edits) / sum(sizes)
        low = share_low(value, independent(edits, sizes))
        same = edits.count(0.0)
        words = (
            f"{unit} error {format_metric(1.0 - value)} (at most {format_metric(1.0 - low)} with "
            f"95 % confidence), {same} of {counted(len(edits), 'text')} equal"
        )
        share = same / len(edits)
        bounds = share_bounds(share, len(edits))
        return agree(
            NAME,
            [
                Measure(
                    scale=scale,
                    value=value,
                    low=low,
                    words=f"{format_metric(value)} of the float model's {unit}s ({words})",
                    may_differ=one_miss(self._count),
                    low_as_seen=kept_low(edits, sizes),
                )
            ],
            losses,
            words=words,
            notes=(
                f"Against the float model's {counted(count, unit)}: {words} "
                f"(95 %: {' to '.join(map(format_metric, bounds))}).",
            ),
            details=bounded(SAME_TEXTS, share, *bounds),
        )


def count_edits(want: tuple[Word, ...], have: tuple[Word, ...]) -> float:
    """Return the words to replace, insert or delete; at most all words of the wanted text, or 1."""
    return float(min(edit_distance(want, have), max(len(want), 1)))


class TranscriptTask(Task):
    """Texts of tokens: a `Task`."""

    name = NAME
    words = "the float model's words"
    items = "texts"
    is_decision = True

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> Transcripts:
        """Prepare the comparison with the float model's outputs, a dict per sample."""
        return Transcripts(part, expected)

    def sketch(self, part: TaskOutputs, outputs: Outputs) -> Sketch:
        """Return the number of words, and the share of each token group."""
        reader = WordReader(part)
        value = outputs[part.outputs[0]]
        tokens = reader.tokens_of(value)
        return Sketch(
            shares=share_groups(tokens) if tokens else {},
            rest="",
            numbers={f"{reader.unit}s in a text": float(len(reader.read(value)))},
        )


TASK = TranscriptTask()
