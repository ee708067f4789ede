"""Measure pictures to look at by their peak signal to noise ratio."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Tensor
from edgepack.tasks.contract import MOST_DECIBELS, Scale
from edgepack.tasks.decibels import compare_ratios, decibels
from edgepack.tasks.one_output import Compared, ValueTask

PSNR = Scale(metric="psnr_db", least=43.0, best=MOST_DECIBELS, is_decibels=True)

_PEAKS = ((-0.1, 1.1, 1.0), (-1.1, 1.1, 2.0), (-25.0, 280.0, 255.0))
"""Bounds of values, and from the darkest to the brightest one: 0…1, -1…1, 0…255."""


def compare_pictures(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the pictures of one output; see `Compare`."""
    peak = _peak(expected)

    def ratio(want: Floats, have: Floats) -> float:
        return decibels(peak**2, float(np.mean((have - want) ** 2)))

    return compare_ratios(PSNR, output, ratio, expected, got)


def _peak(expected: Sequence[Tensor]) -> float:
    least = min(float(value.min()) for value in expected)
    most = max(float(value.max()) for value in expected)
    for low, high, peak in _PEAKS:
        if low <= least and most <= high:
            return peak
    return most - least


PICTURE = ValueTask("picture", "its pictures (PSNR)", compare_pictures)
