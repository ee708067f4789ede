"""Measure outputs of which nobody says what they mean: by each meaning that they may have."""

from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np

from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.classification.measure import compare_rows, same_decisions
from edgepack.tasks.contract import Measure
from edgepack.tasks.description import UNKNOWN, TaskOutputs
from edgepack.tasks.embedding.measure import measure_neighbourhood
from edgepack.tasks.values.measure import ValueOutputs, measure_explained
from edgepack.tasks.values.parts import Part, find_parts

_NARROWEST = 16
"""Values from which on a row of unknown meaning counts as a vector."""


class UnknownSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of outputs of unknown meaning.

    Attributes:
        winners: Those with a clear winner in nearly each row, as scores of characters have.
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
        if output in self._winners:
            pairs = zip(expected, got, strict=True)
            rows = compare_rows(output, [same_decisions(want, have) for want, have in pairs])
            measures += rows.measures
            losses = np.maximum(losses, rows.losses)
        return measures, losses


class Unknown:
    """Outputs of unknown meaning: a `Task`."""

    name = UNKNOWN
    words = "the variance of its values, and how its vectors differ from each other"

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> UnknownOutputs:
        """Prepare the comparison with the float model's outputs, one dict a sample."""
        settings = msgspec.convert(part.settings, UnknownSettings)
        parts = find_parts(expected, part.outputs)
        return UnknownOutputs(part.outputs, expected, parts, settings.winners)


UNKNOWN_TASK = Unknown()
