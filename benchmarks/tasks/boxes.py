"""Boxes from a text detector's map, and the count of correct boxes.

The map becomes boxes as in Liao et al., "Real-time Scene Text Detection with Differentiable
Binarization" (2020), with PaddleOCR's settings; lines are level, so upright rectangles do.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_PIXEL_FROM, _BOX_FROM, _UNCLIP_RATIO = 0.3, 0.5, 1.6
"""PaddleOCR's `thresh`, `box_thresh` and `unclip_ratio`."""
_MATCH_FROM = 0.5
"""Intersection over union from which a box counts as found."""


class Box(NamedTuple):
    """An upright rectangle in pixels, right and bottom not included."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def area(self) -> float:
        """Return the square pixels; 0 for an inverted box."""
        return max(0.0, self.right - self.left) * max(0.0, self.bottom - self.top)


def find_boxes(probabilities: npt.NDArray[np.floating]) -> list[Box]:
    """Find the boxes in a map.

    Args:
        probabilities: float (height, width), of each pixel to be text, shrunk at the borders.
    """
    boxes = []
    for rows, columns in _components(probabilities > _PIXEL_FROM):
        if probabilities[rows, columns].mean() < _BOX_FROM:
            continue
        box = Box(columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        around = 2 * (box.right - box.left + box.bottom - box.top)
        by = box.area * _UNCLIP_RATIO / around
        boxes.append(Box(box.left - by, box.top - by, box.right + by, box.bottom + by))
    return boxes


def count_matches(found: list[Box], expected: list[Box]) -> int:
    """Count the expected boxes that were found, each by a separate box; best pairs first."""
    pairs = sorted(
        (
            (overlap(one, other), i, j)
            for i, one in enumerate(found)
            for j, other in enumerate(expected)
        ),
        reverse=True,
    )
    taken: set[tuple[str, int]] = set()
    for share, i, j in pairs:
        if share >= _MATCH_FROM and not {("found", i), ("expected", j)} & taken:
            taken |= {("found", i), ("expected", j)}
    return len(taken) // 2


def overlap(one: Box, other: Box) -> float:
    """Return the intersection over union."""
    common = Box(
        max(one.left, other.left),
        max(one.top, other.top),
        min(one.right, other.right),
        min(one.bottom, other.bottom),
    ).area
    return common / (one.area + other.area - common)


def _components(
    mask: npt.NDArray[np.bool_],
) -> list[tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
    """Yield rows and columns of each group of pixels that touch, by a side or a corner."""
    left = {(int(row), int(column)) for row, column in zip(*np.nonzero(mask), strict=True)}
    groups = []
    while left:
        group = [left.pop()]
        for row, column in group:
            near = {(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            group.extend(near)
        places = np.array(group)
        groups.append((places[:, 0], places[:, 1]))
    return groups
