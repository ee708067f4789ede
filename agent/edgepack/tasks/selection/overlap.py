"""How much of what one model selects another selects too, in any order."""

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
    """Share of the rows of both that the other has as well, all samples taken together.

    A row is what lies along the last axis; of an output with one axis longer than 1 each number is
    one. Rows of integers are the same where they are equal, rows of floats where none differs by
    more than a tenth of the output's size.

    Args:
        expected, got: One array a sample; the number of rows may differ from one to the other.

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
    """How many numbers make a row: 1 where only one axis is longer than 1."""
    axes = list(value.shape)
    while axes and axes[0] == 1:
        del axes[0]
    return axes[-1] if len(axes) > 1 else 1


def _rows(value: npt.NDArray[np.generic], width: int) -> npt.NDArray[np.float64]:
    """float64 (rows, width); none where the values make no rows of that width."""
    flat = value.astype(np.float64).ravel()
    if not width or flat.size % width:
        return np.zeros((0, width))
    return flat.reshape(-1, width)[:_MOST_ROWS]


def _size(values: Sequence[npt.NDArray[np.generic]]) -> float:
    squares = sum(float(np.sum(value.astype(np.float64) ** 2)) for value in values)
    count = sum(value.size for value in values)
    return float(np.sqrt(squares / count)) if count else 0.0
