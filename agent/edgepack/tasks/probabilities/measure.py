"""Measure probabilities that people read, rank by or hold against thresholds.

Three measures, the worst decides: how likely the float model's distribution finds the variant's
(log loss), how well the variant keeps the float model's order of samples (AUC), and the variance
that is kept. Of a tabular classifier every decision was kept, and AUC fell from .992 to .982.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.likelihood import is_distribution, measure_likelihood
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.order import keep_order
from edgepack.tasks.sketch import Sketch, finite_rows
from edgepack.tasks.values.measure import measure_explained
from edgepack.tasks.values.strict import is_row, measure_columns

ORDER = Scale(metric="auc", least=0.99)
_FEWEST_EVENTS = 3.0
"""Expected decisions for and against: with fewer, samples hold none with 5 % or more."""

_MOST_COLUMNS = 64
"""Columns whose order is compared: the work grows with the square of the samples."""


def compare_probabilities(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> Compared:
    """Compare the probabilities of an output; see `Compare`."""
    explained, losses = measure_explained(output, expected, got)
    measures = [explained]
    likelihood = measure_likelihood(output, expected, got)
    if likelihood is not None:
        measures.append(likelihood[0])
        losses = np.maximum(losses, likelihood[1])
        order = _measure_order(output, expected, got)
        measures += [] if order is None else [order]
    is_apart = is_row(expected) and not all(map(is_distribution, expected))
    columns = measure_columns(output, expected, got) if is_apart else None
    if columns is not None:
        measures.append(columns[0])
        losses = np.maximum(losses, columns[1])
    return Compared(measures=tuple(measures), losses=losses)


def _measure_order(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> Measure | None:
    """Measure the AUC that is kept where the float model's probabilities are right.

    Of many columns those count that vary most. None if each column has too few decisions for or
    against: samples of one class have no order.
    """
    want, have = (
        np.nan_to_num(np.stack([value.astype(np.float64).ravel() for value in values]), nan=0.5)
        for values in (expected, got)
    )
    is_known = np.minimum(want.sum(axis=0), (1.0 - want).sum(axis=0)) >= _FEWEST_EVENTS
    order = np.argsort(np.where(is_known, want.std(axis=0), -1.0), kind="stable")
    columns = [column for column in order[-_MOST_COLUMNS:] if is_known[column]]
    found = keep_order(want[:, columns], have[:, columns])
    if found is None:
        return None
    return Measure(scale=ORDER, value=found[0], low=found[1], output=output)


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
