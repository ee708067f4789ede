"""Measure of outputs with unknown meaning: by each possible meaning."""

from collections.abc import Iterator, Sequence
from typing import Self

import msgspec
import numpy as np

from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.classification.measure import compare_rows, same_decisions
from edgepack.tasks.contract import Measure
from edgepack.tasks.description import UNKNOWN, TaskOutputs
from edgepack.tasks.embedding.measure import measure_neighbourhood
from edgepack.tasks.sketch import Sketch, sketch_values
from edgepack.tasks.sums.measure import measure_sums
from edgepack.tasks.threshold.measure import are_probabilities, measure_crossings
from edgepack.tasks.values.measure import ValueOutputs, measure_explained
from edgepack.tasks.values.parts import Part, find_parts
from edgepack.tasks.values.strict import (
    has_unlike_columns,
    is_row,
    measure_columns,
    measure_relative,
    measure_within,
)

_NARROWEST = 16
"""Values from which on a row of unknown meaning counts as a vector."""

_UNLIKE = 10.0
"""Times that the spreads of a vector's columns may differ: beyond, they are quantities."""

_FEWEST_SUMMED = 64
_LOGITS = 20.0
"""Median size up to which values of both signs may be logits."""


class UnknownSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Known facts about outputs of unknown meaning.

    Attributes:
        winners: Outputs with a clear winner in nearly each row, as scores of characters have.
    """

    winners: tuple[str, ...] = ()


class UnknownOutputs(ValueOutputs):
    """The float model's values of outputs of unknown meaning: an `Expected`.

    Args:
        names, expected, parts: See `ValueOutputs`.
        winners: See `UnknownSettings`.
    """

    def __init__(
        self,
        names: Sequence[str],
        expected: Sequence[Outputs],
        parts: tuple[Part, ...],
        winners: tuple[str, ...],
    ) -> None:
        super().__init__(UNKNOWN, names, expected, parts)
        self._winners = winners

    def of(self, indices: Sequence[int]) -> Self:
        """Return the same with some of the samples."""
        chosen = [self._expected[index] for index in indices]
        return type(self)(self._names, chosen, self.parts, self._winners)

    def measure_whole(
        self, output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
    ) -> tuple[list[Measure], Floats]:
        """Measure an output that is not divided into parts."""
        explained, losses = measure_explained(output, expected, got)
        measures = [explained]
        near = measure_neighbourhood(output, expected, got, _NARROWEST)
        if near is not None:
            measures.append(near)
        for each in _measure_possible(output, expected, got):
            measures.append(each[0])
            losses = np.maximum(losses, each[1])
        if output in self._winners:
            pairs = zip(expected, got, strict=True)
            rows = compare_rows(output, [same_decisions(want, have) for want, have in pairs])
            measures += rows.measures
            losses = np.maximum(losses, rows.losses)
        return measures, losses


def _measure_possible(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> Iterator[tuple[Measure, Floats]]:
    """Measure an output by each meaning that its values allow."""
    found: list[tuple[Measure, Floats] | None] = []
    if is_row(expected):
        is_narrow = expected[0].size < _NARROWEST
        if is_narrow or has_unlike_columns(expected, _UNLIKE):
            found.append(measure_columns(output, expected, got))
        found.append(measure_within(output, expected, got))
        found.append(measure_relative(output, expected, got))
    elif _may_be_summed(expected):
        found.append(measure_sums(output, expected, got))
    if _may_be_crossed(expected):
        found.append(measure_crossings(output, expected, got))
    yield from (each for each in found if each is not None)


def _may_be_summed(values: Sequence[Tensor]) -> bool:
    """Return whether an output may be a map that is summed: many values, none negative."""
    if min(value.size for value in values) < _FEWEST_SUMMED:
        return False
    least = min(float(np.nanmin(value)) for value in values)
    greatest = max(float(np.nanmax(value)) for value in values)
    return least >= -0.01 * greatest


def _may_be_crossed(values: Sequence[Tensor]) -> bool:
    """Return whether values may be probabilities or logits, each for itself."""
    if are_probabilities(values):
        return True
    flat = np.concatenate([value.ravel() for value in values]).astype(np.float64)
    flat = flat[np.isfinite(flat)]
    return bool((flat < 0).any() and (flat > 0).any() and np.median(np.abs(flat)) <= _LOGITS)


class Unknown:
    """Outputs of unknown meaning: a `Task`."""

    name = UNKNOWN
    words = "the variance of its values, and how its vectors differ from each other"
    items = "values"

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> UnknownOutputs:
        """Prepare the comparison with the float model's outputs, a dict per sample."""
        # The settings of a task that a later release added say nothing here.
        own = part.settings if part.task == UNKNOWN else {}
        settings = msgspec.convert(own, UnknownSettings)
        parts = find_parts(expected, part.outputs)
        return UnknownOutputs(part.outputs, expected, parts, settings.winners)

    def sketch(self, part: TaskOutputs, outputs: Outputs) -> Sketch:
        """Return level and spread of the values."""
        return sketch_values(part, outputs)


UNKNOWN_TASK = Unknown()
