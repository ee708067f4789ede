"""The contract of a task: comparison of outputs, and wording of the result.

A task opens the float model's outputs once (`Task.open`) and measures other outputs against these
(`Expected.measure`). Build, probe and shadow all measure so. Every measure maps to a common scale,
the share of the task that is kept: 1 at no loss, .99 if 1 % of right answers is expected to be
lost.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

import msgspec

from edgepack.tasks.arrays import Floats, Outputs
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.sketch import Sketch, sketch_values

LOSS = 0.01
"""Share of its task that a model may lose unless a profile says otherwise."""

MOST_DECIBELS = 100.0
"""What float rounding itself leaves: nothing is told apart beyond."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Scale of a metric: maps its number to the share of the task that is kept.

    Attributes:
        metric: The metric's name.
        least: Value at which 1 % of the task is lost.
        best: The float model's own value, or that value after float rounding.
        is_decibels: Whether the metric counts as the power of an error.
    """

    metric: str
    least: float
    best: float = 1.0
    is_decibels: bool = False

    def kept(self, value: float) -> float:
        """Return the share of the task that is kept, 0…1, at a value of the metric."""
        if self.is_decibels:
            used = math.pow(10.0, (self.least - max(value, -MOST_DECIBELS)) / 10.0)
        else:
            used = (self.best - min(value, self.best)) / (self.best - self.least)
        return max(0.0, 1.0 - LOSS * used)

    def least_for(self, keep: float) -> float:
        """Return the least value of the metric that keeps a share of the task."""
        if keep == 1.0 - LOSS:
            return self.least
        used = (1.0 - keep) / LOSS
        if self.is_decibels:
            return self.least - 10.0 * math.log10(used) if used else self.best
        return self.best - used * (self.best - self.least)


class Measure(msgspec.Struct, frozen=True, kw_only=True):
    """Number that must hold.

    Attributes:
        scale: The metric and its scale.
        value: Value of the metric.
        low: Its lower bound for samples like these, one-sided, 95 %; None where samples do not
            tell.
        output: The measured output; "" for several outputs.
        words: Description of the measure, if the metric's name is not enough:
            `F1 .991 of the float model's boxes`.
        part: Which part of the output, in words.
        may_differ: Share that may always differ, such as a single sample of few; 0 for none.
        bounds: Values that few samples leave open with their lower bounds, where the value is the
            worst of several.
        low_as_seen: `low` without the uncertainty of few samples that are all right; None for
            `low`.
        cost: Share of right answers that changed decisions are expected to cost; None where the
            float model does not tell.
        expected_loss: The same on other samples like these.
        expected_loss_low: Its lower bound, one-sided, 95 %.
    """

    scale: Scale
    value: float
    low: float | None = None
    output: str = ""
    words: str = ""
    part: str = ""
    may_differ: float = 0.0
    bounds: tuple[tuple[float, float], ...] = ()
    low_as_seen: float | None = None
    cost: float | None = None
    expected_loss: float | None = None
    expected_loss_low: float | None = None

    @property
    def metric(self) -> str:
        """Return the metric's name, with the measured part."""
        return f"{self.scale.metric} ({self.part})" if self.part else self.scale.metric

    @property
    def kept(self) -> float:
        """Return the share of the task that is kept, 0…1."""
        if self.cost is not None:
            return 1.0 - max(self.cost, self.expected_loss or 0.0)
        return self.scale.kept(self.value)


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Agreement of outputs with the float model's, by a single task.

    Attributes:
        task: The task.
        value: Share of the task that is kept, 0…1: the worst of the measures.
        low: Its lower bound for samples like these, one-sided, 95 %.
        words: The result in a few words.
        losses: Share of the task that each sample loses, in order.
        measures: All measures, at least 1.
        notes: Sentences for a report.
        details: More numbers, by name.
        doubt: Why these samples say little of the task; "" where they say enough.
    """

    task: str
    value: float
    low: float
    words: str
    losses: tuple[float, ...]
    measures: tuple[Measure, ...]
    notes: tuple[str, ...] = ()
    details: dict[str, float] = {}
    doubt: str = ""


class Expected(Protocol):
    """The float model's outputs on some samples, opened by a task."""

    def of(self, indices: Sequence[int]) -> Self:
        """Return the same comparison with some of the samples, as opened with all samples."""
        ...

    def measure(self, got: Sequence[Outputs]) -> Agreement:
        """Measure other outputs on the same samples, in the same order."""
        ...


class Task(Protocol):
    """Task: comparison of outputs with a common meaning.

    A task may inherit `settle` and `sketch` from here.
    """

    @property
    def name(self) -> str:
        """Return the task's name, as in `[outputs]` and `[gates.accuracy]`."""
        ...

    @property
    def words(self) -> str:
        """Return the kept property, in words that follow "keeps"."""
        ...

    @property
    def items(self) -> str:
        """Return the plural noun of the answers that the task counts: `boxes`."""
        ...

    @property
    def is_decision(self) -> bool:
        """True if the task turns values into an answer, as a decision does."""
        ...

    def settle(self, part: TaskOutputs, expected: Sequence[Outputs]) -> TaskOutputs:
        """Return the part with the settings that the float model's values decide."""
        return part

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> Expected:
        """Prepare the comparison with the float model's outputs, a dict per sample."""
        ...

    def sketch(self, part: TaskOutputs, outputs: Outputs) -> Sketch:
        """Return the features of an inference for measuring drift: level and spread of values."""
        return sketch_values(part, outputs)


def agree(
    task: str,
    measures: Sequence[Measure],
    losses: Floats,
    *,
    words: str = "",
    notes: Sequence[str] = (),
    details: Mapping[str, float] | None = None,
    doubt: str = "",
) -> Agreement:
    """Return the agreement of all measures; the worst measure decides.

    Args:
        task: The task.
        measures: At least 1.
        losses: float64 (samples,).
        words: The result in a few words; by default the worst metric and its value.
        notes, details, doubt: See `Agreement`.
    """
    worst = min(measures, key=lambda measure: measure.kept)
    lows = [
        one.kept if one.low is None else min(one.kept, one.scale.kept(one.low)) for one in measures
    ]
    return Agreement(
        task=task,
        value=worst.kept,
        low=min(lows),
        words=words or f"{worst.metric} {worst.value:.4f}",
        losses=tuple(losses.tolist()),
        measures=tuple(measures),
        notes=tuple(notes),
        details=dict(details or {}),
        doubt=doubt,
    )
