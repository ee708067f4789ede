"""Boxes of text in a map of probabilities (differentiable binarization, Liao et al. 2020).

1. Pixels above the threshold, grown by a pixel, that touch each other are a text.
2. The smallest rectangle around a text, at any angle, is its box.
3. The mean of the map in the box decides whether it is kept.
4. Maps are trained on shrunk texts, so boxes grow.
5. Boxes are sorted in the order of reading: by lines from the top, and from the left in a line.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from edgepack.stages.wiring import Boxes
from edgepack.tasks.arrays import Floats, Tensor

_LEAST_PIXELS = 3
"""Shorter side of a box in the map, and of a box in the picture."""

_SAME_LINE = 10
"""Boxes whose upper edges differ by less, in pixels, are in one line."""

_ARC_TOLERANCE = 0.25
"""Clipper's, in pixels."""


def find_text(step: Boxes, values: Tensor, scaled: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the boxes of text of a picture.

    Args:
        step: Thresholds.
        values: Map (1, 1, height, width).
        scaled: Pixels of the map per pixel of the picture, across and down.
        size: Height and width of the picture.

    Returns:
        float32 (boxes, 4, 2): corners clockwise from the upper left one, across and down.
    """
    plane = np.asarray(values, np.float32).reshape(values.shape[-2:])
    boxes = []
    for points in _find_components(_grow_pixels(plane > step.threshold))[: step.most]:  # 1
        corners, shorter = _smallest_rectangle(points)  # 2
        if shorter < _LEAST_PIXELS or _mean_inside(plane, corners) < step.least:  # 3
            continue
        corners, shorter = _smallest_rectangle(_grow_box(corners, step.grow))  # 4
        if shorter < _LEAST_PIXELS + 2:
            continue
        found = np.rint(corners / np.asarray(scaled, np.float64))
        box = _clockwise(np.clip(found, 0, [size[1] - 1, size[0] - 1]))
        sides = np.linalg.norm(box[1] - box[0]), np.linalg.norm(box[3] - box[0])
        if min(int(side) for side in sides) > _LEAST_PIXELS:
            boxes.append(box)
    return np.array(_in_reading_order(boxes), np.float32).reshape(-1, 4, 2)  # 5


def _grow_pixels(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return a mask with the pixels to the right of, below, and below right of each of its own."""
    grown = mask.copy()
    grown[1:] |= mask[:-1]
    grown[:, 1:] |= grown[:, :-1].copy()
    return grown


def _find_components(mask: npt.NDArray[np.bool_]) -> list[Floats]:
    """Return the ends of the rows of each group of pixels that touch, lowest groups first.

    Each group is float64 (points, 2), across and down.
    """
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1] - 1
    parents = list(range(len(rows)))

    def root(run: int) -> int:
        while parents[run] != run:
            parents[run] = parents[parents[run]]
            run = parents[run]
        return run

    firsts = np.searchsorted(rows, np.arange(mask.shape[0] + 1))
    for above, below, end in zip(firsts[:-2], firsts[1:-1], firsts[2:], strict=True):
        one, other = int(above), int(below)
        while one < below and other < end:  # runs that touch, at corners too
            if starts[other] <= ends[one] + 1 and starts[one] <= ends[other] + 1:
                parents[root(other)] = root(one)
            if ends[one] < ends[other]:
                one += 1
            else:
                other += 1
    groups: dict[int, list[int]] = {}
    for run in range(len(rows)):
        groups.setdefault(root(run), []).append(run)
    return [
        np.concatenate(
            [
                np.stack([starts[runs], rows[runs]], axis=1),
                np.stack([ends[runs], rows[runs]], axis=1),
            ]
        ).astype(np.float64)
        for runs in reversed(groups.values())
    ]


def _smallest_rectangle(points: Floats) -> tuple[Floats, float]:
    """Return the smallest rectangle around points, and its shorter side.

    Returns:
        float64 (4, 2), clockwise from the upper left corner; and pixels.
    """
    hull = _convex_hull(points)
    if len(hull) < 3:
        return np.repeat(hull[:1], 4, axis=0), 0.0
    edges = np.roll(hull, -1, axis=0) - hull
    edges /= np.linalg.norm(edges, axis=1)[:, None]
    along = hull @ edges.T
    across = hull @ np.stack([-edges[:, 1], edges[:, 0]])
    widths, heights = np.ptp(along, axis=0), np.ptp(across, axis=0)
    best = int(np.argmin(widths * heights))
    axes = np.stack([edges[best], [-edges[best, 1], edges[best, 0]]])
    low_x, high_x = along[:, best].min(), along[:, best].max()
    low_y, high_y = across[:, best].min(), across[:, best].max()
    corners = np.array([[low_x, low_y], [high_x, low_y], [high_x, high_y], [low_x, high_y]]) @ axes
    return _clockwise(corners), float(min(widths[best], heights[best]))


def _convex_hull(points: Floats) -> Floats:
    """Return the corners of the convex hull, in order (Andrew's monotone chain)."""
    ordered = sorted(set(map(tuple, points.tolist())))
    chains: list[list[tuple[float, ...]]] = []
    for side in (ordered, ordered[::-1]):
        chain: list[tuple[float, ...]] = []
        for point in side:
            while len(chain) > 1 and _turns_right(chain[-2], chain[-1], point):
                chain.pop()
            chain.append(point)
        chains.append(chain[:-1])
    return np.array(chains[0] + chains[1] or ordered, np.float64)


def _turns_right(one: tuple[float, ...], two: tuple[float, ...], three: tuple[float, ...]) -> bool:
    turn = (two[0] - one[0]) * (three[1] - one[1]) - (two[1] - one[1]) * (three[0] - one[0])
    return turn <= 0


def _clockwise(corners: Floats) -> Floats:
    """Return four corners clockwise from the upper left one."""
    ordered = corners[np.argsort(corners[:, 0], kind="stable")]
    left, right = (
        side[np.argsort(side[:, 1], kind="stable")] for side in (ordered[:2], ordered[2:])
    )
    return np.stack([left[0], right[0], right[1], left[1]])


def _mean_inside(plane: Tensor, corners: Floats) -> float:
    """Return the mean of a map in a box, edges included."""
    whole = np.trunc(corners)
    limit = np.array(plane.shape[::-1]) - 1
    low = np.clip(np.floor(whole.min(axis=0)), 0, limit).astype(int)
    high = np.clip(np.ceil(whole.max(axis=0)), 0, limit).astype(int)
    across, down = np.meshgrid(np.arange(low[0], high[0] + 1), np.arange(low[1], high[1] + 1))
    inside = np.ones(across.shape, bool)
    for one, other in pairwise([*whole, whole[0]]):
        turn = (other[0] - one[0]) * (down - one[1]) - (other[1] - one[1]) * (across - one[0])
        inside &= turn >= -np.abs(other - one).max() / 2
    part = plane[low[1] : high[1] + 1, low[0] : high[0] + 1]
    return float(part[inside].mean()) if inside.any() else 0.0


def _grow_box(corners: Floats, grow: float) -> Floats:
    """Return points around a box, at the distance by which it grows: round corners, whole pixels.

    Corners have as many points as Clipper's `JT_ROUND` gives them, by which recognizers are used.
    """
    sides = np.roll(corners, -1, axis=0) - corners
    lengths = np.linalg.norm(sides, axis=1)
    distance = grow * lengths[0] * lengths[1] / lengths.sum()
    whole = np.trunc(corners)
    sides = np.roll(whole, -1, axis=0) - whole
    if not distance or not np.linalg.norm(sides, axis=1).all():
        return whole
    directions = np.arctan2(-sides[:, 0], sides[:, 1])  # outwards
    steps = np.pi / np.arccos(max(1 - _ARC_TOLERANCE / distance, -1.0))
    steps = min(steps, np.pi * distance)
    points = []
    for place, corner in enumerate(whole):
        first, last = directions[place - 1], directions[place]
        arc = (last - first) % (2 * np.pi)
        count = max(round(steps * arc / (2 * np.pi)), 1)
        angles = np.append(first + np.arange(count) * 2 * np.pi / steps, last)
        points.append(corner + distance * np.stack([np.cos(angles), np.sin(angles)], axis=1))
    found = np.concatenate(points)
    return np.asarray(np.trunc(found + np.copysign(0.5, found)))


def _in_reading_order(boxes: list[Floats]) -> list[Floats]:
    ordered = sorted(boxes, key=lambda box: (box[0][1], box[0][0]))
    for last in range(1, len(ordered)):
        for place in range(last, 0, -1):
            above, below = ordered[place - 1][0], ordered[place][0]
            if abs(below[1] - above[1]) >= _SAME_LINE or below[0] >= above[0]:
                break
            ordered[place - 1], ordered[place] = ordered[place], ordered[place - 1]
    return ordered
