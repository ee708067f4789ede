"""Measure what TopK or NonMaxSuppression picks: rows change places where scores are alike."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.description import SELECTION
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.selection.overlap import overlap

OVERLAP = Scale(metric="overlap", least=0.99)


def compare_selections(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the rows of one output in any order; see `Compare`."""
    have = [
        other if other.ndim == want.ndim else want[:0] if want.ndim else np.zeros(0)
        for want, other in zip(expected, got, strict=True)
    ]
    measure = Measure(scale=OVERLAP, value=overlap(expected, have), output=output)
    pairs = zip(expected, have, strict=True)
    losses = np.array([1.0 - overlap([want], [other]) for want, other in pairs])
    return Compared(measures=(measure,), losses=losses)


SELECTED = ValueTask(SELECTION, "what the float model selects, in any order", compare_selections)
