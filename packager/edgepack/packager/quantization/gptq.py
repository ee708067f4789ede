"""GPTQ: weights are rounded column by column, later columns compensating earlier columns' errors.

The criterion is the error of the product on the calibration samples, so the columns' second moments
X^T X are the weights (Frantar et al., "GPTQ", 2022). Columns with the most signal come first;
scales are set before, so that scales do not depend on the order. The dampening and the lazy update
in groups of columns are the paper's.
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgepack.tasks.arrays import Floats, Singles

Moments = npt.NDArray[np.floating[Any]]
"""Sums of x^T x."""

_DAMPENING = 0.01
"""Share of the mean of the diagonal that is added to it, so that it can be inverted."""

_COLUMNS_AT_ONCE = 128


class Grid(Protocol):
    """The reals that integers stand for: (integer - zero point) * step."""

    @property
    def lowest(self) -> int:
        """The least integer."""

    @property
    def highest(self) -> int:
        """The greatest integer."""

    def of_columns(self, columns: npt.NDArray[np.intp]) -> tuple[Singles, Singles]:
        """Return step and zero point of a column of each group.

        Args:
            columns: (groups,), the column's number in each group.

        Returns:
            Two times float32 (groups, rows).
        """


def round_by_gptq(weight: Singles, grid: Grid, moments: Moments) -> Singles:
    """Round a weight so that its products on the samples stay near.

    Args:
        weight: float32 (groups, rows, columns); each group is a product of its own.
        grid: Grid of the integers.
        moments: (groups, columns, columns): the sum of x^T x over each group's inputs.

    Returns:
        The integers, as float32 of the weight's shape.
    """
    columns = weight.shape[2]
    order = np.argsort(-np.diagonal(moments, axis1=1, axis2=2), axis=1, kind="stable")
    inverse = inverse_factor(_sorted(moments, order))
    left = np.take_along_axis(weight, order[:, None, :], axis=2)
    for start in range(0, columns, _COLUMNS_AT_ONCE):
        end = min(start + _COLUMNS_AT_ONCE, columns)
        errors = np.empty((*left.shape[:2], end - start), dtype=np.float32)
        for i in range(start, end):
            step, zero_point = grid.of_columns(order[:, i])
            rounded = np.rint(left[:, :, i] / step) + zero_point
            integers = np.clip(rounded, grid.lowest, grid.highest)
            error = (left[:, :, i] - (integers - zero_point) * step) / inverse[:, i, i][:, None]
            left[:, :, i + 1 : end] -= error[:, :, None] * inverse[:, None, i, i + 1 : end]
            errors[:, :, i - start] = error
            left[:, :, i] = integers
        left[:, :, end:] -= errors @ inverse[:, start:end, end:]
    result = np.empty_like(left)
    np.put_along_axis(result, np.broadcast_to(order[:, None, :], result.shape), left, axis=2)
    return result


def _sorted(moments: Moments, order: npt.NDArray[np.intp]) -> Floats:
    """Return the same with rows and columns in an order of their own for each group."""
    result = np.empty(moments.shape)
    for sorted_one, one, places in zip(result, moments, order, strict=True):
        sorted_one[...] = one[np.ix_(places, places)]
    return result


def output_error(difference: Singles, moments: Moments) -> float:
    """Return squared error of a product's outputs where its weights differ, summed over the
    samples.

    Args:
        difference: float32 (groups, rows, columns).
        moments: (groups, columns, columns), as above.
    """
    wide = difference.astype(np.float64)
    return float(np.sum((wide @ moments) * wide))


def inverse_factor(moments: Floats) -> Singles:
    """Return the upper Cholesky factor of the inverse, for each of a stack of matrices or for a
    single matrix.

    The factor is the inverse of the lower factor of the matrix with its rows and columns reversed,
    reversed itself: so no inverse of the whole is made, and a matrix less is held.

    Args:
        moments: (…, columns, columns); dampened in place, since several of these matrices take more
            memory than the model.

    Returns:
        float32 of the same shape.
    """
    diagonal = np.diagonal(moments, axis1=-2, axis2=-1)
    dampening = _DAMPENING * np.mean(diagonal, axis=-1, keepdims=True)
    added = np.where(diagonal <= 0.0, 1.0, 0.0) + np.where(dampening == 0.0, 1.0, dampening)
    every = np.arange(moments.shape[-1])
    moments[..., every, every] += added
    lower = np.linalg.cholesky(moments[..., ::-1, ::-1])
    _invert_lower(lower)
    return np.ascontiguousarray(lower[..., ::-1, ::-1], dtype=np.float32)


def _invert_lower(lower: npt.NDArray[np.floating[Any]]) -> None:
    """Invert lower triangular matrices in place, some rows at a time."""
    columns = lower.shape[-1]
    for start in range(0, columns, _COLUMNS_AT_ONCE):
        end = min(start + _COLUMNS_AT_ONCE, columns)
        square = np.linalg.inv(lower[..., start:end, start:end])
        before = lower[..., start:end, :start] @ lower[..., :start, :start]
        lower[..., start:end, :start] = -square @ before
        lower[..., start:end, start:end] = np.tril(square)
