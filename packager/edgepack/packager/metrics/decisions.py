"""What decisions that came out otherwise are expected to cost, without labels.

A classifier that hesitates between two classes is about as often right with the one as with the
other, so a variant that decides otherwise there is as good. Where it was sure, the other decision
is wrong. If its scores say how often it is right, a decision for b in place of a costs
p(a) - p(b) of a right answer.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.packager.tensors.arrays import Floats, Tensor

_CLEAR = 0.5
"""Least share of the winner, in the median sample: below it scores do not say how sure it is."""


def cost_of_changes(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float | None:
    """Share of right answers that changed decisions are expected to cost, 0…1.

    Args:
        expected, got: Rows of scores or distributions, one a sample, of the float model and of the
            candidate; what cannot be compared counts as a wrong answer.

    Returns:
        None where samples hold several rows or none, or the float model's scores say nothing of how
        sure it is.
    """
    if not all(value.ndim and value.size == value.shape[-1] > 0 for value in expected):
        return None
    shares = [_as_shares(value.astype(np.float64).ravel()) for value in expected]
    if not all(np.isfinite(row).all() for row in shares):
        return None
    if np.median([row.max() for row in shares]) < _CLEAR:
        return None
    costs = []
    for share, value in zip(shares, got, strict=True):
        if value.size != share.size or not np.isfinite(value).all():
            costs.append(1.0)
            continue
        costs.append(float(share.max() - share[int(value.ravel().argmax())]))
    return float(np.mean(costs))


def _as_shares(row: Floats) -> Floats:
    """A distribution as it is, scores by their softmax."""
    if (row >= -1e-6).all() and abs(row.sum() - 1.0) < 1e-3:
        return row
    grown = np.exp(row - row.max())
    return np.asarray(grown / grown.sum())
