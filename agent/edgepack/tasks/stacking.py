"""Small samples are compared many at a time: a call of NumPy takes longer than their few values."""

from collections.abc import Iterator, Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Tensor

_MOST_VALUES = 65_536
"""Of a stack; outputs of more are looked at one after the other, as they may be megabytes each."""


def stacks(expected: Sequence[Tensor], got: Sequence[Tensor]) -> Iterator[slice]:
    """Yield neighbouring samples that may be compared at once: of a common shape on both sides, and
    small.

    Args:
        expected, got: An array per sample.

    Yields:
        Slices that together are all samples, in order; a sample without a matching neighbour is a
        slice by itself.
    """
    start = 0
    for number in range(1, len(expected) + 1):
        first, size = expected[start], max(expected[start].size, 1)
        is_full = (number - start + 1) * size > _MOST_VALUES
        if number < len(expected) and not is_full:
            shapes = {expected[number].shape, got[number].shape, got[start].shape}
            if shapes == {first.shape}:
                continue
        yield slice(start, number)
        start = number


def as_rows(values: Sequence[Tensor]) -> Floats:
    """Return samples of a common shape as the rows of a matrix, float64 (samples, values)."""
    return np.stack([value.reshape(-1) for value in values]).astype(np.float64)
