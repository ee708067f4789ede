"""Measure quantities column by column, within each sample, and by the forms that values have.

A pool over columns measures the column with the largest unit: of ten sensor quantities, five were
dead while a pool kept .998. A pool over samples measures the level: for a forecast of series with
different scales, the course was lost while a pool kept .9999.

Measured on small models by their own truth (mean R2, skill): variants that lost the task had .98 or
less by column or within samples, variants that kept the task .991 or more; see the table of
evidence.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Floats, Tensor
from edgepack.tasks.classification.decisions import CLEAR
from edgepack.tasks.contract import LOSS, Measure, Scale
from edgepack.tasks.decibels import flat_pair
from edgepack.tasks.intervals import kept_low, mean_low, quantile_high, share_low

BY_COLUMN = Scale(metric="explained_by_column", least=0.99)
WITHIN = Scale(metric="explained_within_samples", least=0.99)
"""Of R2 and of skill, 1 % of the variance is 1 % of the task."""
RELATIVE = Scale(metric="median_relative_accuracy", least=0.99)
WIDTH = Scale(metric="width_kept", least=0.99)
PEAKS = Scale(metric="peak_agreement", least=0.99)
TOLERANCE = Scale(metric="tolerance_kept", least=0.99)
RESIDUAL = Scale(metric="residual_kept", least=0.98)
"""Of the variance of scores: their distances in standard deviations fall by half as much."""

NARROWEST = 16
"""Values from which on a row counts as a vector that is compared with others."""

FEWEST_IN_MAP = 64
"""Values of a sample from which on several rows may be a map: fewer are quantities beside each
other, as quantiles of some days.
"""

_MOVED = 1.5
"""Places by which a peak may move: its neighbours, with corners."""

MAGNITUDES = 20.0

_CONSTANT = 2.0**-20
"""Share of a column's mean square below which its variance is the rounding of 16-bit floats."""

ROUNDED = 2.0**-40
"""The same of 32-bit floats, with three bits to spare: coordinates of a town vary by 1e-11."""

MOST_LOST = 2.0
"""Of one sample, in its own spread: beyond it is lost, and the mean over samples stays one."""


def measure_columns(
    output: str,
    expected: Sequence[Tensor],
    got: Sequence[Tensor],
    constant: float = _CONSTANT,
) -> tuple[Measure, Floats] | None:
    """Measure the variance between samples of the worst column.

    Args:
        output: Its name.
        expected, got: The float model's values and others, an array per sample.
        constant: Share of a column's mean square up to which its variance does not count.

    Returns:
        The measure and the loss of each sample, mean over columns; None where samples are few or
        of unlike shapes, or hold a single column.
    """
    pair = _rows(expected, got)
    if pair is None or len(expected) < _fewest(pair[0]) or pair[0].shape[1] < 2:
        return None
    want, have = pair
    variances = (want - want.mean(axis=0)) ** 2
    whole = variances.sum(axis=0)
    varies = whole > constant * (want**2).sum(axis=0)
    if not varies.any():
        return None
    errors = (have - want) ** 2
    kept = 1.0 - errors[:, varies].sum(axis=0) / whole[varies]
    worst = np.flatnonzero(varies)[int(kept.argmin())]
    measure = Measure(
        scale=BY_COLUMN,
        value=float(kept.min()),
        low=kept_low(errors[:, worst].tolist(), variances[:, worst].tolist()),
        output=output,
        words=f"explained variance {kept.min():.4f} of column {worst} of output '{output}', the "
        f"worst of {int(varies.sum())}",
    )
    losses = (errors[:, varies] / whole[varies]).mean(axis=1) * len(expected)
    return measure, losses


def measure_slices(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor], axis: int
) -> Measure | None:
    """Measure the variance of the worst slice along an axis, such as a band of a spectrum.

    Args:
        output: Its name.
        expected, got: The float model's values and others, an array per sample.
        axis: The axis.

    Returns:
        The measure; None where samples are few or of unlike shapes, or no two slices vary.
    """
    shape = expected[0].shape
    if len(expected) < FEWEST_FOR_SPREAD or any(v.shape != shape for v in (*expected, *got)):
        return None
    count, mean = shape[axis], np.zeros(shape[axis])
    wanted = [np.moveaxis(v, axis, 0).reshape(count, -1).astype(np.float64) for v in expected]
    for rows in wanted:
        mean += np.nan_to_num(np.nanmean(rows, axis=1)) / len(wanted)
    whole = np.array([np.nansum((rows - mean[:, None]) ** 2, axis=1) for rows in wanted])
    errors = np.array(
        [
            np.nansum(
                (np.moveaxis(value.astype(np.float64), axis, 0).reshape(rows.shape) - rows) ** 2,
                axis=1,
            )
            for value, rows in zip(got, wanted, strict=True)
        ]
    )
    size = sum(np.nansum(rows**2, axis=1) for rows in wanted)
    varies = whole.sum(axis=0) > _CONSTANT * size
    if varies.sum() < 2:
        return None
    kept = 1.0 - errors[:, varies].sum(axis=0) / whole[:, varies].sum(axis=0)
    worst = np.flatnonzero(varies)[int(kept.argmin())]
    return Measure(
        scale=BY_COLUMN,
        value=float(kept.min()),
        low=kept_low(errors[:, worst].tolist(), whole[:, worst].tolist()),
        output=output,
        words=f"explained variance {kept.min():.4f} of slice {worst} of axis {axis} of output "
        f"'{output}'",
    )


def _fewest(rows: Floats) -> int:
    """Return the samples from which on columns have a variance each: of many columns one is small
    by chance, as the beginning of a sound.
    """
    return FEWEST_FOR_SPREAD if rows.shape[1] < NARROWEST else 2 * FEWEST_FOR_SPREAD


def has_unlike_columns(expected: Sequence[Tensor], ratio: float) -> bool:
    """Return whether the columns of a row differ in spread by more than a ratio."""
    pair = _rows(expected, expected)
    if pair is None or len(expected) < _fewest(pair[0]):
        return False
    spreads = pair[0].std(axis=0)
    spreads = spreads[spreads > 1e-3 * np.sqrt(_CONSTANT) * np.abs(pair[0]).mean(axis=0)]
    return bool(spreads.size > 1 and spreads.min() > 0 and spreads.max() > ratio * spreads.min())


def measure_within(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats] | None:
    """Measure the variance within each sample that is kept, mean over samples.

    Args:
        output: Its name.
        expected, got: The float model's values and others, an array per sample.

    Returns:
        The measure and the loss of each sample; None where samples hold few values.
    """
    if min(value.size for value in expected) < FEWEST_FOR_SPREAD:
        return None
    known = [value[np.isfinite(value)].astype(np.float64) for value in expected]
    spreads = [float(np.var(value)) if value.size else 0.0 for value in known]
    # An error that other samples may have is at most the whole of a flat one.
    least = max(LOSS * float(np.median(spreads)), 1e-30)
    losses = _square_errors(expected, got) / np.maximum(spreads, least)
    words = f"of the variance within the samples of output '{output}'"
    return by_losses(WITHIN, output, np.minimum(losses, MOST_LOST), words)


def _square_errors(expected: Sequence[Tensor], got: Sequence[Tensor]) -> Floats:
    """Return the mean square error of each sample, without padding."""
    errors = []
    for want, have in zip(expected, got, strict=True):
        wide, other = flat_pair(want, have)
        errors.append(float(np.mean((other - wide) ** 2)) if wide.size else 0.0)
    return np.array(errors)


def by_losses(scale: Scale, output: str, losses: Floats, words: str) -> tuple[Measure, Floats]:
    """Return the mean share that samples keep, with its bound, and the losses."""
    kept = (1.0 - losses).tolist()
    value = float(np.mean(kept))
    measure = Measure(
        scale=scale,
        value=value,
        low=mean_low(kept),
        output=output,
        words=f"{value:.4f} {words}",
    )
    return measure, losses


def measure_relative(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats] | None:
    """Measure the median relative error, for quantities of a single sign that span magnitudes.

    Args:
        output: Its name.
        expected, got: The float model's values and others, an array per sample.

    Returns:
        See `measure_magnitudes`; also None where values may be shares (0...1).
    """
    values = (value.astype(np.float64) for value in expected)
    if not any(np.any((value < 0.0) | (value > 1.0)) for value in values):
        return None
    return measure_magnitudes(output, expected, got)


def measure_magnitudes(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats] | None:
    """Measure the median relative error, for values of a single sign that span magnitudes.

    A log-normal quantity kept .98 of its variance while its median error was 2.8 %: the largest
    values make the variance.

    Args:
        output: Its name.
        expected, got: The float model's values and others, an array per sample.

    Returns:
        The measure and the loss of each sample; None where values are many, change sign, or do
        not span magnitudes.
    """
    pair = _rows(expected, got)
    if pair is None or pair[0].shape[1] >= NARROWEST:
        return None
    want, have = pair
    sizes = np.abs(want)
    is_one_sign = bool((want > 0.0).all() or (want < 0.0).all())
    if not is_one_sign or sizes.max() < MAGNITUDES * sizes.min():
        return None
    errors = np.abs(have - want) / sizes
    median = float(np.median(errors))
    measure = Measure(
        scale=RELATIVE,
        value=1.0 - median,
        low=1.0 - quantile_high(errors.ravel().tolist(), 0.5, len(errors)),
        output=output,
        words=f"a median relative error of {median:.2%} in output '{output}'",
    )
    return measure, np.minimum(errors.mean(axis=1), 1.0)


def has_ordered_columns(expected: Sequence[Tensor]) -> bool:
    """Return whether the values of each sample are ordered, as the steps of a grade are."""
    if len({value.shape for value in expected}) > 1 or expected[0].size < 2:
        return False
    steps = np.diff(np.stack([value.ravel() for value in expected]).astype(np.float64), axis=1)
    return bool(((steps >= 0.0).all() or (steps <= 0.0).all()) and steps.any())


def measure_widths(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats] | None:
    """Measure the distances between columns that are ordered in the float model, as quantiles are.

    The level of all quantiles varies more than the width between them: of collapsed intervals, the
    variance of each column was kept.

    Args:
        output: Its name.
        expected, got: The float model's values and others, one array a sample.

    Returns:
        The measure and the loss of each sample; None where no axis of fewer than sixteen columns is
        ordered in all samples.
    """
    shape = expected[0].shape
    if len(expected) < FEWEST_FOR_SPREAD or any(value.shape != shape for value in expected):
        return None
    want = np.stack(expected).astype(np.float64)
    have = np.stack(
        [b if b.shape == a.shape else np.zeros_like(a) for a, b in zip(expected, got, strict=True)]
    ).astype(np.float64)
    have = np.nan_to_num(have, nan=0.0, posinf=0.0, neginf=0.0)
    for axis in reversed(range(1, want.ndim)):
        steps = np.diff(want, axis=axis)
        if not 2 <= want.shape[axis] < NARROWEST or not np.isfinite(want).all():
            continue
        if not ((steps >= 0.0).all() or (steps <= 0.0).all()) or not steps.any():
            continue
        widths, others = (
            (value - value.mean(axis=axis, keepdims=True)).reshape(len(value), -1)
            for value in (want, have)
        )
        lost, whole = np.square(others - widths).sum(axis=1), np.square(widths).sum(axis=1)
        value = 1.0 - float(lost.sum() / whole.sum())
        measure = Measure(
            scale=WIDTH,
            value=value,
            low=kept_low(lost.tolist(), whole.tolist()),
            output=output,
            words=f"{value:.4f} of the distances between the ordered columns of output '{output}'",
        )
        return measure, lost * len(lost) / whole.sum()
    return None


def measure_peaks(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats] | None:
    """Measure where the peak of each of several maps is, as of landmarks and joints.

    Args:
        output: Its name.
        expected, got: The float model's values and others, one array a sample.

    Returns:
        The measure, the share of peaks that stay within a place, and the loss of each sample; None
        where samples hold no maps with one peak each.
    """
    if not _have_peaks(expected):
        return None
    width = expected[0].shape[3]
    losses = []
    for want, have in zip(expected, got, strict=True):
        if have.shape != want.shape or not np.isfinite(have).all():
            losses.append(1.0)
            continue
        first, second = (
            value.reshape(value.shape[1], -1).argmax(axis=-1) for value in (want, have)
        )
        moved = np.hypot(first // width - second // width, first % width - second % width)
        losses.append(float((moved > _MOVED).mean()))
    value = 1.0 - float(np.mean(losses))
    count = len(expected) * expected[0].shape[1]
    measure = Measure(
        scale=PEAKS,
        value=value,
        low=share_low(value, count),
        output=output,
        words=f"{value:.4f} of the peaks of output '{output}' at their place",
        may_differ=1.0 / count,
    )
    return measure, np.array(losses)


def _have_peaks(values: Sequence[Tensor]) -> bool:
    """Return whether samples hold maps [1, maps, height, width] with one peak each.

    The softmax of a map gives half of the total to a place, as decisions do, or the area above half
    of the peak is small.
    """
    shape = values[0].shape
    if len(shape) != 4 or shape[0] != 1 or not 2 <= shape[1] < FEWEST_IN_MAP:
        return False
    if shape[2] * shape[3] < FEWEST_IN_MAP or any(value.shape != shape for value in values):
        return False
    shares, areas = [], []
    for value in values:
        flat = value.astype(np.float64).reshape(shape[1], -1)
        above = flat - flat.max(axis=-1, keepdims=True)
        shares += (1.0 / np.exp(above).sum(axis=-1)).tolist()
        areas += (above > 0.5 * above.min(axis=-1, keepdims=True)).mean(axis=-1).tolist()
    return bool(np.median(shares) >= CLEAR or np.median(areas) * FEWEST_IN_MAP <= 1.0)


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """Difference between an input and the float model's reconstruction.

    Attributes:
        mean: Mean square of the difference, mean over samples.
        spread: Standard deviation of a sample's mean square, without outliers, and without the
            part that follows the size of the input.
        independent: Effective number of independent values in a sample's difference.
    """

    mean: float
    spread: float
    independent: float


def measure_residual(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor], residual: Residual
) -> tuple[Measure, Floats]:
    """Measure scores of anomalies: the mean square difference from a reconstructed input.

    An error of mean square e adds e to the score, and its product with the difference r, which is
    random: 4 e r / n in variance, of n independent values. Both count as shares of the variance of
    scores, which is at least the variance of n random values.

    Args:
        output: Its name.
        expected, got: The float model's values and others, one array a sample.
        residual: The difference of the float model.
    """
    errors, count = _square_errors(expected, got), max(residual.independent, 1.0)
    variance = max(residual.spread**2, 2.0 * residual.mean**2 / count)
    losses = (errors**2 + 4.0 * residual.mean * errors / count) / variance
    words = f"of the variance of how far output '{output}' is from its input"
    return by_losses(RESIDUAL, output, np.minimum(losses, MOST_LOST), words)


def measure_tolerance(
    output: str,
    expected: Sequence[Tensor],
    got: Sequence[Tensor],
    tolerance: float | tuple[float, ...],
) -> tuple[Measure, Floats]:
    """Measure how many vectors that are within a distance of the truth stay within it.

    The float model's distances are unknown. Where its errors are normal in up to three dimensions,
    the share within a distance t falls by .8 (e / t)² at most, with e the root mean square of the
    added error, whatever the share is. So (e / t)² bounds the loss.

    Args:
        output: Its name.
        expected, got: The float model's values and others, one array a sample.
        tolerance: The distance, in the output's unit; or one for each column of the last axis,
            which the column's error is divided by before distances are taken.
    """
    lost, limits = [], np.array(tolerance)
    for want, have in zip(expected, got, strict=True):
        if limits.ndim and want.shape[-1:] != limits.shape:
            lost.append(1.0)  # of a release with other columns
            continue
        is_alike = have.shape == want.shape
        wide, other = flat_pair(want / limits, have / limits if is_alike else have)
        rows = max(wide.size // (want.shape[-1] if want.ndim else 1), 1)
        lost.append(float(np.sum((other - wide) ** 2)) / rows)
    off = float(np.sqrt(np.mean(lost)))
    words = f"of the results right: output '{output}' is off by {off:.3g} times its tolerances"
    if not isinstance(tolerance, tuple):
        off *= tolerance
        words = f"of the results right within {tolerance:g}: output '{output}' is off by {off:.3g}"
    return by_losses(TOLERANCE, output, np.minimum(np.array(lost), 1.0), words)


def is_row(values: Sequence[Tensor]) -> bool:
    """Return whether each sample holds few values, or one for each of many steps."""
    shape = values[0].shape
    return (
        int(np.isfinite(values[0]).sum()) < FEWEST_IN_MAP
        or len([size for size in shape if size > 1]) <= 1
    )


def _rows(expected: Sequence[Tensor], got: Sequence[Tensor]) -> tuple[Floats, Floats] | None:
    """Return samples as rows, float64 (samples, values); None where there are none in common.

    Values that are padding (NaN) in any sample are left out. A sample of other values that cannot
    be compared counts as zeros.
    """
    shape = expected[0].shape
    if any(value.shape != shape for value in expected) or not expected[0].size:
        return None
    want = np.stack([value.astype(np.float64).ravel() for value in expected])
    known = np.isfinite(want).all(axis=0)
    if not known.any():
        return None
    have = np.zeros((len(got), int(known.sum())))
    for place, value in enumerate(got):
        if value.shape == shape and np.isfinite(value.ravel()[known]).all():
            have[place] = value.astype(np.float64).ravel()[known]
    return want[:, known], have
