"""Measure how much is kept of how vectors differ from sample to sample."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Tensor
from edgepack.tasks.intervals import kept_low


def neighbourhood_kept(
    expected: Sequence[Tensor], got: Sequence[Tensor], narrowest: int
) -> tuple[float, float] | None:
    """Return the kept share of the differences between samples, each sample's rows averaged.

    Args:
        expected, got: The float model's and the candidate's values, an array per sample.
        narrowest: Values from which on a row counts as a vector.

    Returns:
        The share and its lower bound; None where there are no vectors, or too few samples.
    """
    shapes = {value.shape for value in (*expected, *got)}
    shape = expected[0].shape
    if len(expected) < FEWEST_FOR_SPREAD or len(shapes) > 1 or not _is_vectors(shape, narrowest):
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
        return -1.0, -1.0
    lost = ((error - error.mean(axis=0)) ** 2).sum(axis=1)
    whole = ((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1)
    if not whole.sum():
        return None
    return 1.0 - float(lost.sum() / whole.sum()), kept_low(lost.tolist(), whole.tolist())


def _is_vectors(shape: tuple[int, ...], narrowest: int) -> bool:
    """Return True if each sample is a vector, or a row of vectors."""
    return 2 <= len(shape) <= 3 and shape[0] == 1 and shape[-1] >= narrowest
