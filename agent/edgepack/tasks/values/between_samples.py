"""Differences between the samples of an output."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Bools, Floats, Tensor
from edgepack.tasks.stacking import as_rows, stacks


def variances_between(values: Sequence[Tensor], read: Sequence[Bools] | None) -> list[float]:
    """Return the squared distance of each sample to the mean over samples, element by element.

    Where samples have different shapes, or there are too few for a mean, the mean over all
    elements takes its place. Their sum is never 0.

    Args:
        values: An array per sample.
        read: Which values count, an array a sample; None for all.
    """
    if len(values) >= FEWEST_FOR_SPREAD and len({value.shape for value in values}) == 1:
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


def _mean(values: Sequence[Tensor]) -> Floats:
    """Return the mean over arrays of a common shape, without NaN; NaN if all are NaN."""
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
