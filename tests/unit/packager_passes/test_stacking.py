"""Samples are compared many at a time where they are small and alike."""

import numpy as np
import pytest

from edgepack.tasks.stacking import as_rows, stacks


def _zeros(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.zeros(shape, dtype=np.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("expected", "got", "sizes"),
    [
        ([(1, 3)] * 5, [(1, 3)] * 5, [5]),
        ([(1, 3), (1, 3), (1, 4), (1, 4)], [(1, 3), (1, 3), (1, 4), (1, 4)], [2, 2]),
        ([(1, 3)] * 4, [(1, 3), (1, 2), (1, 3), (1, 3)], [1, 1, 2]),
        ([(1, 3)] * 3, [(1, 2)] * 3, [1, 1, 1]),
        ([(1, 0)] * 3, [(1, 0)] * 3, [3]),
        ([(1, 40_000)] * 3, [(1, 40_000)] * 3, [1, 1, 1]),
        ([(1, 30_000)] * 5, [(1, 30_000)] * 5, [2, 2, 1]),
    ],
)
def test_neighbours_of_one_shape_stand_together_as_long_as_they_are_small(
    expected: list[tuple[int, ...]], got: list[tuple[int, ...]], sizes: list[int]
) -> None:
    parts = list(stacks(_zeros(*expected), _zeros(*got)))
    assert [part.stop - part.start for part in parts] == sizes
    assert [number for part in parts for number in range(part.start, part.stop)] == list(
        range(len(expected))
    )


def test_single_numbers_are_rows_of_one_value() -> None:
    np.testing.assert_array_equal(as_rows([np.array(1.0), np.array(2.0)]), [[1.0], [2.0]])
