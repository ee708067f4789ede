"""Comparison of outputs one by one, value against value."""

from collections.abc import Callable, Sequence
from typing import Self

import msgspec
import numpy as np
from msgspec.structs import replace

from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.contract import Agreement, Measure, agree
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.sketch import Sketch, sketch_values

NOTHING: Tensor = np.zeros(0, dtype=np.float32)
"""In place of an output that was not computed."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Result of comparing an output.

    Attributes:
        measures: At least 1.
        losses: float64 (samples,), see `Agreement`.
        words: See `Agreement`; "" for the default.
        notes: Sentences for a report.
        doubt: See `Agreement`.
    """

    measures: tuple[Measure, ...]
    losses: Floats
    words: str = ""
    notes: tuple[str, ...] = ()
    doubt: str = ""


Compare = Callable[[str, Sequence[Tensor], Sequence[Tensor]], Compared]
"""Takes an output's name, the float model's values and others, one array a sample."""


class OneOutput:
    """The float model's values of an output: an `Expected`.

    Args:
        task: Name of the task.
        part: Names the output.
        expected: The float model's outputs, a dict per sample.
        compare: Compares values.
        share: Share of the opened samples: the tolerated difference depends on all samples.
    """

    def __init__(
        self,
        task: str,
        part: TaskOutputs,
        expected: Sequence[Outputs],
        compare: Compare,
        share: float = 1.0,
    ) -> None:
        self._share = share
        self._task = task
        self._part = part
        self._expected = tuple(expected)
        self._compare = compare

    def of(self, indices: Sequence[int]) -> Self:
        """Return the same with some of the samples."""
        chosen = [self._expected[index] for index in indices]
        share = self._share * len(chosen) / len(self._expected)
        return type(self)(self._task, self._part, chosen, self._compare, share)

    def measure(self, got: Sequence[Outputs]) -> Agreement:
        """Measure other outputs on the same samples, in the same order."""
        name = self._part.outputs[0]
        values = [outputs[name] for outputs in self._expected]
        found = self._compare(name, values, [outputs.get(name, NOTHING) for outputs in got])
        notes = tuple(f"Output '{name}': {note}." for note in found.notes)
        return agree(
            self._task,
            [replace(one, may_differ=one.may_differ * self._share) for one in found.measures],
            found.losses,
            words=found.words,
            notes=notes,
            doubt=found.doubt,
        )


class ValueTask(msgspec.Struct, frozen=True):
    """A task that compares a single output, value against value: a `Task`.

    Attributes:
        name, words, items, sketch, is_decision: See `Task`.
        compare: Compares values.
    """

    name: str
    words: str
    items: str
    compare: Compare
    sketch: Callable[[TaskOutputs, Outputs], Sketch] = sketch_values
    is_decision: bool = False

    def settle(self, part: TaskOutputs, expected: Sequence[Outputs]) -> TaskOutputs:
        """Return the part unchanged."""
        return part

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> OneOutput:
        """Prepare the comparison with the float model's outputs, a dict per sample."""
        return OneOutput(self.name, part, expected, self.compare)
