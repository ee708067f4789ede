"""Measure probabilities that somebody holds against a threshold.

Where 2 % of the variance may be lost, two of them may be off by .02, however little they move in
these samples.
"""

from collections.abc import Sequence

from edgepack.tasks.arrays import Tensor
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.values.measure import measure_explained

_LEAST_VARIANCE = 2 * 0.02


def compare_probabilities(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> Compared:
    """Compare the probabilities of one output; see `Compare`."""
    measure, losses = measure_explained(output, expected, got, _LEAST_VARIANCE)
    return Compared(measures=(measure,), losses=losses)


PROBABILITIES = ValueTask("probabilities", "its probabilities", compare_probabilities)
