"""What the field measures of pictures, depth and sound; the float model's output is the truth.

The budgets follow from what a model's own error leaves. An error that has nothing to do with it
adds to its power: of 32 dB to the truth, as super-resolution and denoising have them, 43 dB to the
float model leave .99, and so do 30 dB to a separated voice of 15 dB.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np

from edgepack.packager.metrics.kinds import MOST_DECIBELS, OutputKind
from edgepack.tasks.arrays import Floats, Tensor
from edgepack.tasks.intervals import OwnMeasure, kept_low, mean_low
from edgepack.tasks.segmentation.areas import measure_segments

_PEAKS = ((-0.1, 1.1, 1.0), (-1.1, 1.1, 2.0), (-25.0, 280.0, 255.0))
"""Bounds of values, and from the darkest to the brightest one: 0…1, -1…1, 0…255."""

_SILENT = 1e-6
"""Share of the loudest sample's power below which a sample is silent, and tells nothing."""


def measure_own(
    kind: OutputKind, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> OwnMeasure | None:
    """What the field measures of outputs of a kind; None where it is nothing of its own.

    Args:
        kind: What the output means.
        expected, got: The float model's and the candidate's values, one array a sample.
    """
    return _MEASURES[kind](expected, got) if kind in _MEASURES else None


def _measure_pictures(expected: Sequence[Tensor], got: Sequence[Tensor]) -> OwnMeasure:
    """Peak signal to noise, decibels, mean over pictures."""
    peak = _peak(expected)

    def ratio(want: Floats, have: Floats) -> float:
        return _decibels(peak**2, float(np.mean((have - want) ** 2)))

    return _mean_decibels(ratio, expected, got)


def _measure_sound(expected: Sequence[Tensor], got: Sequence[Tensor]) -> OwnMeasure:
    """Scale-invariant signal to distortion, decibels, mean over the samples with a sound."""
    powers = [float(value.astype(np.float64).var()) for value in expected]
    heard = [n for n, power in enumerate(powers) if power > _SILENT * max(powers)]
    if not heard:
        return OwnMeasure(value=MOST_DECIBELS, low=MOST_DECIBELS, words="nothing is to be heard")

    def ratio(want: Floats, have: Floats) -> float:
        want, have = want - want.mean(), have - have.mean()
        part = want * (float(want @ have) / float(want @ want))
        return _decibels(float(part @ part), float((have - part) @ (have - part)))

    return _mean_decibels(ratio, [expected[n] for n in heard], [got[n] for n in heard])


def _measure_depth(expected: Sequence[Tensor], got: Sequence[Tensor]) -> OwnMeasure:
    """One minus the mean error, as a share of the mean depth.

    A share of sums: where inverse depths reach 0, the mean of shares has no bounds.
    """
    pairs = [_floats(*pair) for pair in zip(expected, got, strict=True)]
    lost = [float(np.abs(have - want).sum()) for want, have in pairs]
    whole = [max(float(np.abs(want).sum()), 1e-12) for want, _ in pairs]
    return OwnMeasure(value=1.0 - sum(lost) / sum(whole), low=kept_low(lost, whole))


_MEASURES: Mapping[
    OutputKind, Callable[[Sequence[Tensor], Sequence[Tensor]], OwnMeasure | None]
] = {
    OutputKind.SEGMENTATION: measure_segments,
    OutputKind.CLASS_MAP: measure_segments,
    OutputKind.DEPTH: _measure_depth,
    OutputKind.IMAGE: _measure_pictures,
    OutputKind.AUDIO: _measure_sound,
}


def _mean_decibels(
    ratio: Callable[[Floats, Floats], float], expected: Sequence[Tensor], got: Sequence[Tensor]
) -> OwnMeasure:
    values = [ratio(*_floats(*pair)) for pair in zip(expected, got, strict=True)]
    return OwnMeasure(
        value=fmean(values),
        low=mean_low(values),
        words=f"{min(values):.1f} dB in the worst sample",
    )


def _floats(want: Tensor, have: Tensor) -> tuple[Floats, Floats]:
    """Two samples in a row each; zeros in place of one that cannot be compared (shape, NaN)."""
    wide = want.astype(np.float64).reshape(-1)
    if have.shape != want.shape or not np.isfinite(have).all():
        return wide, np.zeros_like(wide)
    return wide, have.astype(np.float64).reshape(-1)


def _peak(expected: Sequence[Tensor]) -> float:
    least = min(float(value.min()) for value in expected)
    most = max(float(value.max()) for value in expected)
    for low, high, peak in _PEAKS:
        if low <= least and most <= high:
            return peak
    return most - least


def _decibels(signal: float, noise: float) -> float:
    """Their ratio, at most `MOST_DECIBELS` either way."""
    if noise <= 0.0:
        return MOST_DECIBELS
    ratio = 10.0 * math.log10(max(signal, 1e-300) / noise)
    return max(-MOST_DECIBELS, min(ratio, MOST_DECIBELS))
