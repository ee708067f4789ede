"""Measure maps of distances by their mean error, as a share of the mean distance.

A share of sums: where inverse depths reach 0, the mean of shares has no bounds.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.decibels import flat_pair
from edgepack.tasks.intervals import kept_low
from edgepack.tasks.one_output import Compared, ValueTask

RELATIVE = Scale(metric="relative_accuracy", least=0.99)


def compare_depths(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the distances of an output; see `Compare`."""
    pairs = [flat_pair(*pair) for pair in zip(expected, got, strict=True)]
    lost = [float(np.abs(have - want).sum()) for want, have in pairs]
    whole = [max(float(np.abs(want).sum()), 1e-12) for want, _ in pairs]
    value = 1.0 - sum(lost) / sum(whole)
    measure = Measure(scale=RELATIVE, value=value, low=kept_low(lost, whole), output=output)
    return Compared(measures=(measure,), losses=np.array(lost) / np.array(whole))


TASK = ValueTask("depth", "its distances", "distances", compare_depths)
