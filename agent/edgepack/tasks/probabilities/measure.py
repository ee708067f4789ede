"""Measure probabilities that people read, rank by or hold against thresholds.

Three measures, the worst decides: how likely the float model's distribution finds the variant's
(log loss), how well the variant orders the float model's own decisions (AUC), and the variance that
is kept. Of a tabular classifier every decision was kept, and AUC fell from .992 to .982.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.cross_check import is_distribution
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.likelihood import bounded, measure_likelihood
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.sketch import Sketch, finite_rows
from edgepack.tasks.values.measure import measure_explained
from edgepack.tasks.values.strict import is_row, measure_columns

_LEAST_VARIANCE = 2 * 0.02
"""Where 2 % of the variance may be lost, two probabilities may be off by .02, however little they
move in these samples."""

ORDER = Scale(metric="auc", least=0.99)
_FEWEST_EACH = 5
"""Decisions for and against, of which an order says something."""


def compare_probabilities(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> Compared:
    """Compare the probabilities of an output; see `Compare`."""
    explained, losses = measure_explained(output, expected, got, _LEAST_VARIANCE)
    measures = [explained]
    likelihood = measure_likelihood(output, expected, got)
    if likelihood is not None:
        measures.append(likelihood[0])
        losses = np.maximum(losses, likelihood[1])
        order = _order(expected, got)
        if order is not None:
            measures.append(Measure(scale=ORDER, value=order, output=output))
    is_apart = is_row(expected) and not all(map(is_distribution, expected))
    columns = measure_columns(output, expected, got) if is_apart else None
    if columns is not None:
        measures.append(columns[0])
        losses = np.maximum(losses, columns[1])
    return Compared(measures=tuple(measures), losses=losses)


def _order(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float | None:
    """Return the mean AUC over classes: the variant's ranking of the float model's decisions for a
    class above all others.

    A decision of the float model counts by how sure the float model was. None if no class has
    enough decisions for and against.
    """
    want = np.stack([bounded(value).ravel() for value in expected])
    have = np.stack([bounded(value).ravel() for value in got])
    areas = []
    for first, second in zip(want.T, have.T, strict=True):
        is_for = first >= 0.5
        if min(is_for.sum(), (~is_for).sum()) >= _FEWEST_EACH:
            areas.append(_area(first, second, is_for))
    return float(np.mean(areas)) if areas else None


def _area(want: Floats, have: Floats, is_for: np.ndarray) -> float:
    """Return the share of pairs in order, each by the distance that the float model sees."""
    apart = want[is_for][:, None] - want[~is_for][None, :]
    order = have[is_for][:, None] - have[~is_for][None, :]
    right = np.where(order > 0.0, 1.0, np.where(order == 0.0, 0.5, 0.0))
    return float((apart * right).sum() / apart.sum())


def sketch_probabilities(part: TaskOutputs, outputs: Outputs) -> Sketch:
    """Return the mean probability of each class."""
    rows = finite_rows(outputs[part.outputs[0]])
    means = rows.mean(axis=0) if rows.size else np.zeros(0)
    shares = {part.class_name(number): float(mean) for number, mean in enumerate(means)}
    return Sketch(shares=shares, share_words="probability of {}")


TASK = ValueTask(
    "probabilities",
    "its probabilities",
    "probabilities",
    compare_probabilities,
    sketch_probabilities,
)
