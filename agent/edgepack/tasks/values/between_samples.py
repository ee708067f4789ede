"""How the samples of one output differ from each other, and how much of that is kept."""

import math
from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Bools, Floats, Tensor
from edgepack.tasks.intervals import kept_low
from edgepack.tasks.stacking import as_rows, stacks

_FEWEST_FOR_MEAN = 8
"""Samples from which on the mean over samples says something."""


def variances_between(values: Sequence[Tensor], read: Sequence[Bools] | None) -> list[float]:
    """Squared distance of each sample to the mean over samples, element by element.

    Where samples have different shapes, or there are too few for a mean, the mean over all
    elements takes its place. Their sum is never 0.

    Args:
        values: One array a sample.
        read: Which values count, an array a sample; None for all.
    """
    if len(values) >= _FEWEST_FOR_MEAN and len({value.shape for value in values}) == 1:
        mean = _mean(values)
    else:
        count = sum(int((~np.isnan(value)).sum()) for value in values)
        total = sum(float(np.nansum(value, dtype=np.float64)) for value in values)
        mean = np.asarray(total / max(count, 1))
    variances: list[float] = []
    size = 0.0
    for part in stacks(values, values):
        wide = as_rows(values[part])
        counted = np.isfinite(wide)
        if read is not None:
            counted &= as_rows(read[part]).astype(np.bool_)
        apart = wide - mean.reshape(-1)
        variances += np.square(apart, where=counted, out=np.zeros_like(wide)).sum(axis=1).tolist()
        size += float(np.square(wide, where=counted, out=np.zeros_like(wide)).sum())
    least = max(1e-6 * size, 1e-12) / len(values)
    return variances if sum(variances) > least * len(values) else [least] * len(values)


def neighbourhood_kept(
    expected: Sequence[Tensor], got: Sequence[Tensor], narrowest: int
) -> tuple[float, float] | None:
    """Share of the differences between samples that is kept, each sample's rows averaged.

    Args:
        expected, got: The float model's and the candidate's values, one array a sample.
        narrowest: Values from which on a row counts as a vector.

    Returns:
        The share and its lower bound; None where there are no vectors, or too few samples.
    """
    shapes = {value.shape for value in (*expected, *got)}
    shape = expected[0].shape
    if len(expected) < _FEWEST_FOR_MEAN or len(shapes) > 1 or not _is_vectors(shape, narrowest):
        return None
    wanted, given = [], []
    for want, have in zip(expected, got, strict=True):
        rows = want.astype(np.float64).reshape(-1, shape[-1])
        in_use = ~np.isnan(rows).any(axis=-1)
        if in_use.any():
            wanted.append(rows[in_use].mean(axis=0))
            given.append(have.astype(np.float64).reshape(rows.shape)[in_use].mean(axis=0))
    vectors = np.stack(wanted)
    error = np.stack(given) - vectors
    if not np.isfinite(error).all():
        return -math.inf, -math.inf
    lost = ((error - error.mean(axis=0)) ** 2).sum(axis=1)
    whole = ((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1)
    if not whole.sum():
        return None
    return 1.0 - float(lost.sum() / whole.sum()), kept_low(lost.tolist(), whole.tolist())


def _mean(values: Sequence[Tensor]) -> Floats:
    """Mean over arrays of one shape of what is not NaN; NaN where nothing is left."""
    counts = np.zeros(values[0].shape, dtype=np.int64)
    sums = np.zeros(values[0].shape, dtype=np.float64)
    for part in stacks(values, values):
        rows = as_rows(values[part]).reshape(part.stop - part.start, *sums.shape)
        known = ~np.isnan(rows)
        counts += known.sum(axis=0)
        sums += np.where(known, rows, 0.0).sum(axis=0)
    means = np.full(sums.shape, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _is_vectors(shape: tuple[int, ...], narrowest: int) -> bool:
    """One vector a sample, or a row of them."""
    return 2 <= len(shape) <= 3 and shape[0] == 1 and shape[-1] >= narrowest
