"""Overlap of two models' selections, in any order."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NEAR = 0.1
"""Share of an output's root-mean-square by which floats of one row may differ."""

_MOST_ROWS = 1024
"""The first rows, with the highest scores, are compared: each is compared with each."""


def overlap(
    expected: Sequence[npt.NDArray[np.generic]], got: Sequence[npt.NDArray[np.generic]]
) -> float:
    """Return the share of both models' rows that the other has as well, over all samples together.

    A row lies along the last axis; in an output with a single axis longer than 1 each number is a
    row. Rows of integers are the same if equal, rows of floats if no number differs by more than a
    tenth of the output's size.

    Args:
        expected, got: An array per sample; the number of rows may differ between both.

    Returns:
        0 … 1; 1 where nothing is selected by either.
    """
    size = _size(expected)
    width = max((_width(value) for value in (*expected, *got)), default=1)
    found = count = 0
    for want, have in zip(expected, got, strict=True):
        a, b = _rows(want, width), _rows(have, width)
        count += len(a) + len(b)
        near = np.ones((len(a), len(b)), dtype=np.bool_)
        for column in range(width):
            off = np.abs(a[:, column, None] - b[None, :, column])
            near &= off <= (NEAR * size if want.dtype.kind == "f" else 0.0)
        found += int(near.any(axis=1).sum()) + int(near.any(axis=0).sum())
    return found / count if count else 1.0


def _width(value: npt.NDArray[np.generic]) -> int:
    """Return the number of values in a row: 1 if only a single axis is longer than 1."""
    axes = list(value.shape)
    while axes and axes[0] == 1:
        del axes[0]
    return axes[-1] if len(axes) > 1 else 1


def _rows(value: npt.NDArray[np.generic], width: int) -> npt.NDArray[np.float64]:
    """Return float64 (rows, width); no rows if the values do not fit that width."""
    flat = value.astype(np.float64).ravel()
    if not width or flat.size % width:
        return np.zeros((0, width))
    return flat.reshape(-1, width)[:_MOST_ROWS]


def _size(values: Sequence[npt.NDArray[np.generic]]) -> float:
    squares = sum(float(np.sum(value.astype(np.float64) ** 2)) for value in values)
    count = sum(value.size for value in values)
    return float(np.sqrt(squares / count)) if count else 0.0
