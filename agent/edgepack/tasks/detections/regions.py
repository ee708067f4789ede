"""Boxes around the regions of a map of probabilities, as text detectors are read.

Liao et al., "Real-time Scene Text Detection with Differentiable Binarization" (2020): adjacent
pixels above a threshold are a region; its score is their mean; its box is widened again by the
trained shrinkage. Boxes are upright here, while applications rotate them.
"""

import numpy as np

from edgepack.tasks.arrays import Floats, Integers
from edgepack.tasks.detections.boxes import NONE, Boxes

_PIXEL_FROM, _WIDENED, _SHORTEST_SIDE = 0.3, 1.5, 3
"""PaddleOCR's `thresh`, `unclip_ratio` and `min_size`."""


def find_regions(probabilities: Floats) -> Boxes:
    """Return the regions of a map as boxes.

    Args:
        probabilities: (height, width), 0…1.
    """
    edges = np.diff(np.pad(probabilities > _PIXEL_FROM, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)
    if not len(rows):
        return NONE
    _, region = np.unique(_join_runs(rows, starts, ends, edges.shape[1]), return_inverse=True)
    sums = np.pad(np.cumsum(probabilities, axis=1), ((0, 0), (1, 0)))
    mass = np.bincount(region, sums[rows, ends] - sums[rows, starts])
    pixels = np.bincount(region, ends - starts)
    corners = np.stack(
        [
            _extreme(np.minimum, region, starts),
            _extreme(np.minimum, region, rows),
            _extreme(np.maximum, region, ends),
            _extreme(np.maximum, region, rows + 1),
        ],
        axis=1,
    )
    sides = corners[:, 2:] - corners[:, :2]
    by = (np.prod(sides, axis=1) * _WIDENED / (2.0 * sides.sum(axis=1)))[:, None]
    found = Boxes(
        corners=np.concatenate([corners[:, :2] - by, corners[:, 2:] + by], axis=1),
        scores=mass / pixels,
        classes=np.zeros(len(pixels), np.int64),
    )
    return found.pick(sides.min(axis=1) >= _SHORTEST_SIDE)


def _join_runs(rows: Integers, starts: Integers, ends: Integers, width: int) -> Integers:
    """Return a number for each run of pixels in a row, the same for all runs of a region.

    Runs are adjacent to runs of the next row by a side or a corner.
    """
    below = (rows + 1) * (width + 1)
    first = np.searchsorted(rows * (width + 1) + ends, below + starts, "left")
    last = np.searchsorted(rows * (width + 1) + starts, below + ends, "right")
    counts = np.maximum(last - first, 0)
    above = np.repeat(np.arange(len(rows)), counts)
    offsets = np.arange(len(above)) - np.repeat(np.cumsum(counts) - counts, counts)
    under = np.repeat(first, counts) + offsets
    numbers = np.arange(len(rows))
    while True:
        least = np.minimum(numbers[above], numbers[under])
        joined = numbers.copy()
        np.minimum.at(joined, numbers[above], least)
        np.minimum.at(joined, numbers[under], least)
        joined = joined[joined]
        if np.array_equal(joined, numbers):
            return numbers
        numbers = joined


def _extreme(of: np.ufunc, region: Integers, values: Integers) -> Floats:
    order = np.argsort(region, kind="stable")
    first = np.flatnonzero(np.diff(region[order], prepend=-1))
    return np.asarray(of.reduceat(values[order], first), np.float64)
