"""Input of each doubt: an agreement, and the outputs that it compares."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Outputs, Tensor, are_whole
from edgepack.tasks.contract import LOSS, Agreement
from edgepack.tasks.decibels import flat_pair
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.stacking import as_rows

EXACT = LOSS
"""Error in their own spread up to which values keep any task: of an error that grows with theirs,
such as the mean absolute one, no more is lost."""

Remedy = Literal["task", "layout", "tolerance", "steps", "series", "metric", "samples", "ignored"]
"""Remedy for a doubt: declarations, a metric of the user, other samples, an output without use."""


class Doubt(NamedTuple):
    """Reason for a weak verdict, and what can settle the doubt, the best first."""

    because: str
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True)
class Case:
    """An agreement, and the outputs that it compares.

    Attributes:
        part: The outputs, and how their task is known.
        agreement: Result of the task.
        expected, got: The float model's outputs and others, a dict per sample.
        blind: Other samples' outputs agree as well, see `is_blind`.
    """

    part: TaskOutputs
    agreement: Agreement
    expected: Sequence[Outputs]
    got: Sequence[Outputs]
    blind: bool = False

    @property
    def listed(self) -> str:
        """Return the names of the outputs."""
        return ", ".join(f"'{name}'" for name in self.part.outputs)

    @property
    def are(self) -> str:
        """Return the start of a sentence on the outputs: `'boxes', 'scores' are`."""
        return f"{self.listed} {'are' if len(self.part.outputs) > 1 else 'is'}"

    @property
    def declared(self) -> str:
        """Return the start of a sentence on their declaration."""
        return f"{self.are} declared {self.part.task!r}"

    def outputs(self) -> Iterator[tuple[str, list[Tensor], list[Tensor]]]:
        """Yield name, the float model's values and others of each output that no sample lacks."""
        for name in self.part.outputs:
            if all(name in outputs for outputs in self.got):
                wanted = [outputs[name] for outputs in self.expected]
                yield name, wanted, [outputs[name] for outputs in self.got]

    @cached_property
    def is_exact(self) -> bool:
        """Return True if outputs are so near that no meaning could be lost."""
        compared = list(self.outputs())
        return len(compared) == len(self.part.outputs) and all(
            wanted[0].dtype.kind == "f"
            and not are_whole(wanted)  # whole numbers that are equal say little of other samples
            and not (worst_tenth(wanted, given) > EXACT or _worst_column(wanted, given) > EXACT)
            for _, wanted, given in compared
        )


def worst_tenth(
    expected: Sequence[Tensor], got: Sequence[Tensor], *, of_all: bool = False
) -> float:
    """Return the error of samples in their own spread that nine tenths of the samples keep.

    Args:
        expected, got: The float model's values and others, an array per sample; samples of fewer
            than eight values count in the spread of all samples.
        of_all: Compare no sample with less than the spread of all samples: a picture without
            objects has next to none of its own, and adds to the error of sums what others add.
    """
    pairs = [flat_pair(*pair) for pair in zip(expected, got, strict=True)]
    pairs = [(want, have) for want, have in pairs if want.size]
    if not pairs:
        return 0.0
    overall = float(np.std(np.concatenate([want for want, _ in pairs])))
    errors = []
    for want, have in pairs:
        spread = float(np.std(want)) if want.size >= FEWEST_FOR_SPREAD else overall
        error = float(np.sqrt(np.mean((have - want) ** 2)))
        errors.append(error / max(spread, overall if of_all else LOSS * overall, 1e-30))
    return float(np.percentile(errors, 90))


def _worst_column(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """Return the greatest error of a column in its own spread; 0 where samples are unlike."""
    if any(value.shape != expected[0].shape for value in (*expected, *got)):
        return 0.0
    want, have = as_rows(expected), as_rows(got)
    known = ~np.isnan(want).any(axis=0)
    errors = np.sqrt(np.square(have - want)[:, known].mean(axis=0))
    return float((errors / np.maximum(want[:, known].std(axis=0), 1e-30)).max(initial=0.0))
