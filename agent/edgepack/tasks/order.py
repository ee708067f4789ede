"""Order of samples by a score: the share of pairs that keep the float model's order.

Where the float model's probabilities are right, a pair in the wrong order costs their difference of
the AUC. So pairs are weighted by the float model's distance: samples that are nearly equal cost
little.
"""

import numpy as np

from edgepack.tasks.arrays import Floats
from edgepack.tasks.intervals import jackknife_low


def keep_order(want: Floats, have: Floats) -> tuple[float, float] | None:
    """Return the share of pairs in order, mean over columns, and its lower bound.

    Args:
        want, have: The float model's scores and others, float64 (samples, columns).

    Returns:
        None if no column differs between samples.
    """
    varies = np.ptp(want, axis=0) > 0.0
    columns = [_pairs(*pair) for pair in zip(want[:, varies].T, have[:, varies].T, strict=True)]
    if not columns:
        return None
    values = [float(right.sum() / whole.sum()) for right, whole in columns]
    without = []
    for right, whole in columns:
        left = whole.sum() - 2.0 * whole
        kept = np.where(left > 0.0, right.sum() - 2.0 * right, 1.0) / np.where(left > 0.0, left, 1)
        without.append(kept)
    value = float(np.mean(values))
    return value, jackknife_low(value, np.mean(without, axis=0).tolist())


def _pairs(want: Floats, have: Floats) -> tuple[Floats, Floats]:
    """Return the weights of each sample's pairs in order, and of all its pairs."""
    apart = want[:, None] - want[None, :]
    with np.errstate(invalid="ignore"):
        other = have[:, None] - have[None, :]
    is_right = np.sign(apart) * np.sign(other)  # NaN of two infinities is no order
    share = np.nan_to_num((1.0 + is_right) / 2.0, nan=0.5)
    weights = np.abs(apart)
    return (weights * share).sum(axis=1), weights.sum(axis=1)
