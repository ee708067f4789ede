"""Measure pictures to look at by their peak signal to noise ratio."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Tensor
from edgepack.tasks.contract import MOST_DECIBELS, Scale
from edgepack.tasks.decibels import compare_ratios, decibels
from edgepack.tasks.one_output import Compared, ValueTask

PSNR = Scale(metric="psnr_db", least=43.0, best=MOST_DECIBELS, is_decibels=True)

_EACH_END = 0.1
"""Percent of values at each end of a range that are left out: a float model may overshoot."""

_USUAL = (1.0, 2.0, 255.0)
"""Distances from the darkest to the brightest value: 0…1, -1…1, 0…255."""

_NEAR_USUAL = 1.25


def compare_pictures(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the pictures of an output; see `Compare`."""
    peak = _peak(expected)

    def ratio(want: Floats, have: Floats) -> float:
        return decibels(peak**2, float(np.mean((have - want) ** 2)))

    return compare_ratios(PSNR, output, ratio, expected, got)


def _peak(expected: Sequence[Tensor]) -> float:
    """Return the distance from the darkest to the brightest value, by the robust range of values.

    A usual peak if the range is at most slightly smaller; else the range itself.
    """
    values = np.concatenate([value.ravel() for value in expected]).astype(np.float64)
    low, high = np.percentile(values[np.isfinite(values)], (_EACH_END, 100.0 - _EACH_END))
    spread = float(high - low)
    near = [peak for peak in _USUAL if peak / 2.0 <= spread <= _NEAR_USUAL * peak]
    return min(near, key=lambda peak: abs(peak - spread)) if near else spread


TASK = ValueTask("picture", "its pictures (PSNR)", "pictures", compare_pictures)
