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
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.sketch import Sketch, finite_rows
from edgepack.tasks.values.measure import measure_explained

_LEAST_VARIANCE = 2 * 0.02
"""Where 2 % of the variance may be lost, two probabilities may be off by .02, however little they
move in these samples."""

LIKELIHOOD = Scale(metric="likelihood", least=0.99)
ORDER = Scale(metric="auc", least=0.99)
_LEAST = 1e-4
_FEWEST_EACH = 5
"""Decisions for and against, of which an order says something."""


def compare_probabilities(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> Compared:
    """Compare the probabilities of an output; see `Compare`."""
    explained, losses = measure_explained(output, expected, got, _LEAST_VARIANCE)
    measures = [explained]
    if all(want.shape == have.shape for want, have in zip(expected, got, strict=True)):
        is_one_of = all(value.shape[-1] > 1 and is_distribution(value) for value in expected)
        divergence = np.array(
            [_divergence(*pair, is_one_of) for pair in zip(expected, got, strict=True)]
        )
        measures.append(
            Measure(scale=LIKELIHOOD, value=float(np.exp(-divergence.mean())), output=output)
        )
        losses = np.maximum(losses, 1.0 - np.exp(-divergence))
        order = _order(expected, got)
        if order is not None:
            measures.append(Measure(scale=ORDER, value=order, output=output))
    return Compared(measures=tuple(measures), losses=losses)


def _divergence(want: Tensor, have: Tensor, is_one_of: bool) -> float:
    """Return the mean Kullback-Leibler divergence of a sample's rows, or of single values."""
    if not want.size:
        return 0.0
    first, second = (_bounded(value) for value in (want, have))
    if is_one_of:
        return float((first * np.log(first / second)).sum(axis=-1).mean())
    rest = (1.0 - first) * np.log((1.0 - first) / (1.0 - second))
    return float((first * np.log(first / second) + rest).mean())


def _bounded(value: Tensor) -> Floats:
    return np.clip(np.nan_to_num(value.astype(np.float64), nan=0.5), _LEAST, 1.0 - _LEAST)


def _order(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float | None:
    """Return the mean AUC over classes: the variant's ranking of the float model's decisions for a
    class above all others.

    A decision of the float model counts by how sure the float model was. None if no class has
    enough decisions for and against.
    """
    if len({value.size for value in expected}) > 1:
        return None
    want = np.stack([_bounded(value).ravel() for value in expected])
    have = np.stack([_bounded(value).ravel() for value in got])
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


PROBABILITIES = ValueTask(
    "probabilities",
    "its probabilities",
    "probabilities",
    compare_probabilities,
    sketch_probabilities,
)
