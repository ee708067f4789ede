"""Measure quantities column by column and within each sample.

A pool over columns measures the column with the largest unit: of ten sensor quantities, five were
dead while a pool kept .998. A pool over samples measures the level: for a forecast of series with
different scales, the course was lost while a pool kept .9999.

Measured on small models by their own truth (mean R2, skill): variants that lost the task had .98 or
less by column or within samples, variants that kept the task .991 or more; see the table of
evidence.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.decibels import flat_pair
from edgepack.tasks.intervals import kept_low, mean_low
from edgepack.tasks.values.between_samples import FEWEST_FOR_MEAN

BY_COLUMN = Scale(metric="explained_by_column", least=0.99)
WITHIN = Scale(metric="explained_within_samples", least=0.99)
"""Of R2 and of skill, 1 % of the variance is 1 % of the task."""
RELATIVE = Scale(metric="median_relative_accuracy", least=0.99)

_MOST_RELATIVE = 16
_MAGNITUDES = 20.0

_FEWEST_WITHIN = 8
"""Values from which on the spread within a sample says something."""

_LEAST_SPREAD = 0.01
"""Share of the median spread within samples that a flatter sample counts as."""

_CONSTANT = 1e-6
"""Share of a column's mean square below which its variance is that of a constant."""

_MOST_LOST = 2.0
"""Of one sample, in its own spread: beyond it is lost, and the mean over samples stays one."""


def measure_columns(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats] | None:
    """Measure the variance between samples of the worst column.

    Args:
        output: Its name.
        expected, got: The float model's values and others, an array per sample.

    Returns:
        The measure and the loss of each sample, mean over columns; None where samples are few or
        of unlike shapes, or hold a single column.
    """
    pair = _rows(expected, got)
    if pair is None or len(expected) < FEWEST_FOR_MEAN or pair[0].shape[1] < 2:
        return None
    want, have = pair
    variances = (want - want.mean(axis=0)) ** 2
    whole = variances.sum(axis=0)
    varies = whole > _CONSTANT * (want**2).sum(axis=0)
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


def has_unlike_columns(expected: Sequence[Tensor], ratio: float) -> bool:
    """Return whether the columns of a row differ in spread by more than a ratio."""
    pair = _rows(expected, expected)
    if pair is None or len(expected) < FEWEST_FOR_MEAN:
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
    if min(value.size for value in expected) < _FEWEST_WITHIN:
        return None
    errors, spreads = [], []
    for want, have in zip(expected, got, strict=True):
        wide, other = flat_pair(want, have)
        spreads.append(float(np.var(wide)) if wide.size else 0.0)
        errors.append(float(np.mean((other - wide) ** 2)) if wide.size else 0.0)
    least = max(_LEAST_SPREAD * float(np.median(spreads)), 1e-30)
    losses = np.minimum(np.array(errors) / np.maximum(spreads, least), _MOST_LOST)
    kept = (1.0 - losses).tolist()
    measure = Measure(
        scale=WITHIN,
        value=float(np.mean(kept)),
        low=mean_low(kept),
        output=output,
        words=f"{float(np.mean(kept)):.4f} of the variance within the samples of output '{output}'",
    )
    return measure, losses


def measure_relative(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats] | None:
    """Measure the median relative error, for quantities of a single sign that span magnitudes.

    A log-normal quantity kept .98 of its variance while its median error was 2.8 %: the largest
    values make the variance.

    Args:
        output: Its name.
        expected, got: The float model's values and others, an array per sample.

    Returns:
        The measure and the loss of each sample; None where values are many, change sign or do not
        span magnitudes.
    """
    pair = _rows(expected, got)
    if pair is None or pair[0].shape[1] > _MOST_RELATIVE:
        return None
    want, have = pair
    sizes = np.abs(want)
    is_one_sign = bool((want > 0.0).all() or (want < 0.0).all())
    if not is_one_sign or sizes.max() < _MAGNITUDES * sizes.min():
        return None
    errors = np.abs(have - want) / sizes
    median = float(np.median(errors))
    measure = Measure(
        scale=RELATIVE,
        value=1.0 - median,
        output=output,
        words=f"a median relative error of {median:.2%} in output '{output}'",
    )
    return measure, np.minimum(errors.mean(axis=1), 1.0)


def is_row(values: Sequence[Tensor]) -> bool:
    """Return whether each sample holds a single row of values, or a single value for each of many
    steps.
    """
    shape = values[0].shape
    return len([size for size in shape if size > 1]) <= 1


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
