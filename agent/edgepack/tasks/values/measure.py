"""Measure quantities by the share of their variance that is kept.

Cosine similarity and signal-to-noise look fine while a speech detector loses its speech, since both
count the constant part of all samples.
"""

from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np

from edgepack.decoding import convert_value
from edgepack.tasks.arrays import Bools, Floats, Outputs, Tensor
from edgepack.tasks.contract import Agreement, Measure, Scale, Task, agree
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.intervals import kept_low
from edgepack.tasks.likelihood import are_probabilities, measure_likelihood
from edgepack.tasks.one_output import NOTHING
from edgepack.tasks.plain_error import comparable, row_products
from edgepack.tasks.stacking import stacks
from edgepack.tasks.values.between_samples import variances_between
from edgepack.tasks.values.forms import FORMS
from edgepack.tasks.values.parts import Part, find_parts
from edgepack.tasks.values.series import measure_series
from edgepack.tasks.values.strict import (
    Residual,
    is_row,
    measure_residual,
    measure_tolerance,
)

EXPLAINED = Scale(metric="explained_variance", least=0.98)


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """Kept share of the variance between samples.

    Attributes:
        value: 1 - error / variance: 1 for no error, below 0 for worse than a constant.
        low: Its lower bound, one-sided, 95 %.
        losses: float64 (samples,), error of each sample over the mean variance of a sample.
    """

    value: float
    low: float
    losses: Floats


def explain(
    expected: Sequence[Tensor],
    got: Sequence[Tensor],
    read: Sequence[Bools] | None = None,
) -> Explained:
    """Measure how much of the variance between samples is kept.

    Args:
        expected, got: The float model's values and others, an array per sample.
        read: Which values count, an array a sample; None for all.
    """
    errors: list[float] = []
    for part in stacks(expected, got):
        a, b, _ = comparable(expected[part], got[part], None if read is None else read[part])
        apart = b - a
        errors += row_products(apart, apart)
    variances = variances_between(expected, read)
    whole = sum(variances)
    return Explained(
        value=1.0 - sum(errors) / whole if sum(errors) else 1.0,
        low=kept_low(errors, variances),
        losses=np.array(errors) * len(errors) / whole,
    )


def measure_explained(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats]:
    """Return explained variance as a measure, with the samples' losses; see `explain`."""
    found = explain(expected, got)
    return Measure(scale=EXPLAINED, value=found.value, low=found.low, output=output), found.losses


class ValueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about values; a part may state more, such as the layout of boxes of the graph.

    Attributes:
        residuals: For outputs that reconstruct an input, the remaining difference.
        tolerances: Of outputs that are right within a distance, that distance; or one for each
            column of the last axis.
        winners: Outputs with a clear winner in nearly each row, as scores of characters have.
        steps: Inferences of a series, of models with a state; 0 for single inferences.
    """

    residuals: dict[str, Residual] = {}
    tolerances: dict[str, float | tuple[float, ...]] = {}
    winners: tuple[str, ...] = ()
    steps: int = 0


class ValueOutputs:
    """The float model's values of some outputs: an `Expected`.

    Outputs that hold values of very different size are measured part by part, see `parts`.

    Args:
        task: Name of the task.
        names: The outputs.
        expected: The float model's outputs, a dict per sample.
        parts: See `find_parts`.
        settings: See `ValueSettings`.
    """

    def __init__(
        self,
        task: str,
        names: Sequence[str],
        expected: Sequence[Outputs],
        parts: tuple[Part, ...],
        settings: ValueSettings,
    ) -> None:
        self._task = task
        self._names = tuple(names)
        self._expected = tuple(expected)
        self.parts = parts
        self.settings = settings

    def of(self, indices: Sequence[int]) -> Self:
        """Return the same with some of the samples."""
        chosen = [self._expected[index] for index in indices]
        return type(self)(self._task, self._names, chosen, self.parts, self.settings)

    def measure(self, got: Sequence[Outputs]) -> Agreement:
        """Measure other outputs on the same samples, in the same order."""
        measures: list[Measure] = []
        losses = np.zeros(len(self._expected))
        found = {part.output for part in self.parts if part.is_found}
        given = [{name: outputs.get(name, NOTHING) for name in self._names} for outputs in got]
        for name in self._names:
            wanted = [outputs[name] for outputs in self._expected]
            others = [outputs[name] for outputs in given]
            more = None
            if name not in found:
                own, lost = self.measure_whole(name, wanted, others)
                measures += own
                losses = np.maximum(losses, lost)
                more = measure_series(name, wanted, others, self.settings.steps)
            elif tolerance := self.settings.tolerances.get(name):
                more = measure_tolerance(name, wanted, others, tolerance)
            if more is not None:
                measures.append(more[0])
                losses = np.maximum(losses, more[1])
        for part in self.parts:
            explained = explain(
                [part.of(outputs) for outputs in self._expected],
                [part.of(outputs) for outputs in given],
                part.read_in(self._expected),
            )
            measures.append(
                Measure(
                    scale=EXPLAINED,
                    value=explained.value,
                    low=explained.low,
                    part=part.words,
                )
            )
            losses = np.maximum(losses, explained.losses)
        return agree(self._task, measures, losses)

    def measure_whole(
        self, output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
    ) -> tuple[list[Measure], Floats]:
        """Measure an output that is not divided into parts."""
        residual = self.settings.residuals.get(output)
        tolerance = self.settings.tolerances.get(output, 0.0)
        return measure_strictly(output, expected, got, residual, tolerance)


def measure_strictly(
    output: str,
    expected: Sequence[Tensor],
    got: Sequence[Tensor],
    residual: Residual | None = None,
    tolerance: float | tuple[float, ...] = 0.0,
    *,
    by_column: bool = True,
) -> tuple[list[Measure], Floats]:
    """Measure quantities pooled and by each form that the float model's values have.

    Args:
        output: Its name.
        expected, got: The float model's values and others, one array a sample.
        residual: See `measure_residual`; None where the model reconstructs no input.
        tolerance: See `measure_tolerance`; 0 where no distance decides.
        by_column: The columns of a row are quantities.
    """
    pooled, losses = measure_explained(output, expected, got)
    is_of_row = is_row(expected)
    found = [
        form.measure(output, expected, got)
        for form in FORMS
        if (is_of_row or not form.is_of_rows) and (by_column or not form.is_of_columns)
    ]
    if is_of_row and are_probabilities(expected):
        found.append(measure_likelihood(output, expected, got))
    if residual:
        found.append(measure_residual(output, expected, got, residual))
    if tolerance:
        found.append(measure_tolerance(output, expected, got, tolerance))
    measures = [pooled]
    for each in found:
        if each is not None:
            measures.append(each[0])
            losses = np.maximum(losses, each[1])
    return measures, losses


class Values(Task):
    """Quantities: regression, forecasts: a `Task`."""

    name = "values"
    words = "the variance of its values from sample to sample"
    items = "values"
    is_decision = False

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> ValueOutputs:
        """Prepare the comparison with the float model's outputs, a dict per sample."""
        parts = find_parts(expected, part.outputs)
        settings = convert_value(part.settings, ValueSettings)
        return ValueOutputs(self.name, part.outputs, expected, parts, settings)


TASK = Values()
