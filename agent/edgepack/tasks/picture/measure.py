"""Measure pictures to look at by their peak signal to noise ratio."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Tensor
from edgepack.tasks.contract import MOST_DECIBELS, Scale
from edgepack.tasks.decibels import compare_ratios, decibels
from edgepack.tasks.one_output import Compared, ValueTask

PSNR = Scale(metric="psnr_db", least=43.0, best=MOST_DECIBELS, is_decibels=True)

_USUAL = (1.0, 2.0, 255.0)
"""Distances from the darkest to the brightest value: 0…1, -1…1, 0…255."""

NEAR_USUAL = 1.25
"""Times a usual range that values may overshoot it."""


def compare_pictures(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the pictures of an output; see `Compare`."""
    peak = _peak(expected)

    def ratio(want: Floats, have: Floats) -> float:
        return decibels(peak**2, float(np.mean((have - want) ** 2)))

    return compare_ratios(PSNR, output, ratio, expected, got)


def _peak(expected: Sequence[Tensor]) -> float:
    """Return the distance from the darkest to the brightest value, by the median picture's range.

    A usual peak if the range is at most slightly smaller; else the range itself.
    """
    known = [value[np.isfinite(value)].astype(np.float64) for value in expected]
    spread = float(np.median([float(np.ptp(value)) for value in known if value.size] or [0.0]))
    near = [peak for peak in _USUAL if peak / 2.0 <= spread <= NEAR_USUAL * peak]
    return min(near, key=lambda peak: abs(peak - spread)) if near else spread


TASK = ValueTask("picture", "its pictures (PSNR)", "pictures", compare_pictures)
