"""Measure ratios of powers in decibels, as the field does of pictures and sound.

The float model's output is the truth. The budgets follow from a model's own error: the power of an
independent error adds to the power of the model's error. At 32 dB to the truth, usual for
super-resolution and denoising, 43 dB to the float model leave .99, and so do 30 dB for a separated
voice of 15 dB.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Tensor
from edgepack.tasks.contract import MOST_DECIBELS, Measure, Scale
from edgepack.tasks.intervals import mean_low
from edgepack.tasks.one_output import Compared


def compare_ratios(
    scale: Scale,
    output: str,
    ratio: Callable[[Floats, Floats], float],
    expected: Sequence[Tensor],
    got: Sequence[Tensor],
) -> Compared:
    """Compare by the mean loss of samples, in decibels; a few dead samples weigh as they should.

    Args:
        scale: The metric.
        output: Its name.
        ratio: Takes the values of a sample of the float model and others, float64 (n,) each, and
            returns decibels.
        expected, got: An array per sample.
    """
    values = [ratio(*flat_pair(*pair)) for pair in zip(expected, got, strict=True)]
    losses = np.array([1.0 - scale.kept(value) for value in values])
    worst = -mean_low([-float(loss) for loss in losses])
    measure = Measure(
        scale=scale,
        value=_of_loss(scale, float(losses.mean())),
        low=_of_loss(scale, worst),
        output=output,
    )
    note = f"{min(values):.1f} dB in the worst sample"
    return Compared(measures=(measure,), losses=losses, notes=(note,))


def _of_loss(scale: Scale, loss: float) -> float:
    """Return the decibels at which a sample loses this share of the task."""
    value = scale.least_for(1.0 - loss) if loss > 0.0 else MOST_DECIBELS
    return max(-MOST_DECIBELS, min(value, MOST_DECIBELS))


def flat_pair(want: Tensor, have: Tensor) -> tuple[Floats, Floats]:
    """Return two samples in a row each, without padding (NaN in the first).

    The second row is zeros if the samples cannot be compared (shape, NaN).
    """
    wide = want.astype(np.float64).reshape(-1)
    is_known = np.isfinite(wide)
    if have.shape != want.shape or not np.isfinite(have.reshape(-1)[is_known]).all():
        return wide[is_known], np.zeros(int(is_known.sum()))
    return wide[is_known], have.astype(np.float64).reshape(-1)[is_known]


def decibels(signal: float, noise: float) -> float:
    """Return the ratio of two powers, at most `MOST_DECIBELS` either way."""
    if noise <= 0.0:
        return MOST_DECIBELS
    ratio = 10.0 * math.log10(max(signal, 1e-300) / noise)
    return max(-MOST_DECIBELS, min(ratio, MOST_DECIBELS))
