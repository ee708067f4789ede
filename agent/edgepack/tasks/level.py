"""Tasks whose scores are compared with a threshold: declared, or settled by the build.

The settled threshold is part of the description, so that a device that sees a single inference
compares with the same number as the build.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.one_output import Compared, OneOutput
from edgepack.tasks.sketch import MOST_COLUMNS, Sketch, finite_rows, sketch_values

THRESHOLD = "threshold"
"""The setting's name in `TaskOutputs.settings` and in `[outputs]`."""

CompareAt = Callable[[float, str, Sequence[Tensor], Sequence[Tensor]], Compared]
"""Takes the threshold, and the arguments of `Compare`."""


class LevelTask(msgspec.Struct, frozen=True):
    """A task that compares scores of one output with a threshold: a `Task`.

    Attributes:
        name, words, items, is_decision: See `Task`.
        compare: Compares scores.
        guess: Returns a threshold for the float model's values.
    """

    name: str
    words: str
    items: str
    compare: CompareAt
    guess: Callable[[Sequence[Tensor]], float]
    is_decision: bool = True

    def settle(self, part: TaskOutputs, expected: Sequence[Outputs]) -> TaskOutputs:
        """Return the part with its threshold."""
        values = [outputs[part.outputs[0]] for outputs in expected]
        return replace(part, settings={**part.settings, THRESHOLD: self._level(part, values)})

    def open(self, part: TaskOutputs, expected: Sequence[Outputs]) -> OneOutput:
        """Prepare the comparison with the float model's outputs, one dict a sample."""
        level = self._level(part, [outputs[part.outputs[0]] for outputs in expected])
        return OneOutput(self.name, part, expected, partial(self.compare, level))

    def sketch(self, part: TaskOutputs, outputs: Outputs) -> Sketch:
        """Return the scores' level, and the share above the threshold, class by class."""
        found = sketch_values(part, outputs)
        rows = finite_rows(outputs[part.outputs[0]])
        level = part.settings.get(THRESHOLD)
        if not rows.size or not isinstance(level, int | float):
            return found
        above = (rows >= level).mean(axis=0)
        shares = {"": float(above.mean())}
        if 1 < above.size <= MOST_COLUMNS:
            shares = {f" of {part.class_name(n)}": float(one) for n, one in enumerate(above)}
        return replace(found, shares=shares, share_words="share above the threshold{}", rest="")

    def _level(self, part: TaskOutputs, values: Sequence[Tensor]) -> float:
        stated = part.settings.get(THRESHOLD)
        return float(stated) if isinstance(stated, int | float) else self.guess(values)


def percentile_of(values: Sequence[Tensor], percent: float) -> float:
    """Return a percentile of all finite values; 0 if there are none."""
    flat = np.concatenate([value.astype(np.float64).ravel() for value in values])
    flat = flat[np.isfinite(flat)]
    return float(np.percentile(flat, percent)) if flat.size else 0.0
