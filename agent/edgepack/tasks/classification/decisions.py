"""Expected cost of changed decisions, without labels.

A classifier that hesitates between two classes is about as often right with either class, so a
variant with the other decision is as good there. If the classifier was sure, the other decision is
wrong. If scores are calibrated, a decision for b in place of a costs p(a) - p(b) of a right answer.

Few samples show few decisions that change, or none. The scores show more: the float model's margin
of each decision (log p(a) - log p(b) of its two best classes), and the variant's change of that
margin. A sample's margin is therefore compared with the changes of other samples with similar
margins (`expected_cost`): thirty samples are three hundred pairs.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Integers, Tensor
from edgepack.tasks.intervals import mean_low
from edgepack.tasks.likelihood import LEAST_SHARE

CLEAR = 0.5
"""Least share of the winner, in the median sample: below it scores do not say how sure it is."""

_NEIGHBOURS = 10
"""Samples with the nearest margins whose errors a sample may have as well: sure decisions are moved
by more than others, so errors of all samples together tell too little or too much."""


def costs_of_changes(expected: Sequence[Tensor], got: Sequence[Tensor]) -> Floats | None:
    """Return the share of a right answer that each changed decision is expected to cost, 0…1.

    Args:
        expected, got: Rows of scores or distributions, a row per sample, of the float model and of
            the candidate; rows that cannot be compared count as a wrong answer.

    Returns:
        float64 (samples,); None if samples hold several rows or none, or the float model's scores
        show no confidence.
    """
    shares = _confident_shares(expected)
    if shares is None:
        return None
    costs = []
    for share, value in zip(shares, got, strict=True):
        if not _is_comparable(share, value):
            costs.append(1.0)
            continue
        costs.append(float(share.max() - share[int(value.ravel().argmax())]))
    return np.array(costs)


def expected_cost(expected: Sequence[Tensor], got: Sequence[Tensor]) -> tuple[float, float] | None:
    """Return the expected cost on samples like these, from margins and from changes of other
    samples' margins.

    An error counts with either sign, and no error counts against its own sample.

    Args:
        expected, got: See `cost_of_changes`.

    Returns:
        The cost and its lower bound, one-sided, 95 %; None where that has none, or there are too
        few samples.
    """
    shares = _confident_shares(expected)
    if shares is None or len(shares) <= _NEIGHBOURS or shares[0].size < 2:
        return None
    margins, moved, costs = [], [], []
    for want, share, value in zip(expected, shares, got, strict=True):
        second, first = np.argsort(share, kind="stable")[-2:]
        margins.append(_margin(share, first, second))
        costs.append(share[first] - share[second])
        if not _is_comparable(share, value):
            moved.append(np.inf)
            continue
        given = _as_shares(_as_row(value), is_told=_is_distribution(_as_row(want)))
        moved.append(abs(_margin(given, first, second) - margins[-1]))
    order = np.argsort(margins, kind="stable")
    margin, error = np.asarray(margins)[order], np.asarray(moved)[order]
    changes = (error[_nearest(margin)] > margin[:, None]).mean(axis=1) / 2.0
    lost = changes * np.asarray(costs)[order]
    return float(lost.mean()), mean_low(lost.tolist())


def _nearest(ascending: Floats) -> Integers:
    """Return the indices of the `_NEIGHBOURS` nearest other numbers of each number."""
    count, reach = len(ascending), np.arange(1, _NEIGHBOURS + 1)
    places = np.arange(count)[:, None] + np.concatenate([-reach, reach])
    inside = np.clip(places, 0, count - 1)
    apart = np.where(places == inside, np.abs(ascending[inside] - ascending[:, None]), np.inf)
    nearest = np.argsort(apart, axis=1, kind="stable")[:, :_NEIGHBOURS]
    return np.take_along_axis(inside, nearest, axis=1)


def _confident_shares(expected: Sequence[Tensor]) -> list[Floats] | None:
    """Return the float model's distributions, if these show confidence."""
    if not all(value.ndim and value.size == value.shape[-1] > 0 for value in expected):
        return None
    shares = [_as_shares(row, is_told=_is_distribution(row)) for row in map(_as_row, expected)]
    if not all(np.isfinite(row).all() for row in shares):
        return None
    return shares if np.median([row.max() for row in shares]) >= CLEAR else None


def _is_comparable(share: Floats, value: Tensor) -> bool:
    return value.size == share.size and bool(np.isfinite(value).all())


def _margin(share: Floats, first: int, second: int) -> float:
    """Return the lead of the first class over the second, on the scale of scores."""
    return float(np.log(max(share[first], LEAST_SHARE) / max(share[second], LEAST_SHARE)))


def _as_row(value: Tensor) -> Floats:
    return value.astype(np.float64).ravel()


def _is_distribution(row: Floats) -> bool:
    return bool((row >= -1e-6).all() and abs(row.sum() - 1.0) < 1e-3)


def _as_shares(row: Floats, *, is_told: bool) -> Floats:
    """Return a distribution unchanged, and scores as their softmax."""
    if is_told:
        return np.maximum(row, 0.0)
    grown = np.exp(row - row.max())
    return np.asarray(grown / grown.sum())
