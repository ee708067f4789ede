"""Maps of classes that are drawn, and scores that mark them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

SIDE = 48


def draw_areas(count: int, classes: int = 3) -> list[npt.NDArray[np.int64]]:
    """Maps [1,48,48] with a background and a rectangle of each other class."""
    maps = []
    for number in range(count):
        rng = np.random.default_rng(number)
        area = np.zeros((1, SIDE, SIDE), np.int64)
        for kind in range(1, classes):
            top, left = rng.integers(0, SIDE - 20, 2)
            area[0, top : top + 20, left : left + 20] = kind
        maps.append(area)
    return maps


def scores_of(areas: Sequence[npt.NDArray[np.int64]], classes: int = 3) -> list[Floats]:
    """Logits [1, classes, 48, 48]."""
    rows = [np.moveaxis(np.eye(classes, dtype=np.float32)[area], -1, 1) for area in areas]
    return [row * 12 - 6 for row in rows]
