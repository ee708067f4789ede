"""Kept areas of a segmenter: intersection over union, class by class."""

from collections.abc import Sequence

import msgspec
import numpy as np

from edgepack.number_format import format_metric
from edgepack.tasks.arrays import Floats, Integers, Tensor
from edgepack.tasks.intervals import jackknife_low

Classes = Integers

_THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7)
"""Probabilities from which on applications count a place to the foreground."""

_FEWEST_PLACES = 100
"""A class with fewer, all samples together, does not count: one place would be 1 % of it."""


class Areas(msgspec.Struct, frozen=True, kw_only=True):
    """Kept areas of a segmenter.

    Attributes:
        value: Mean intersection over union.
        low: Its lower bound for samples like these, one-sided, 95 %.
        words: The class that keeps least.
        losses: float64 (samples,), one minus the mean over each sample's classes.
    """

    value: float
    low: float
    words: str
    losses: Floats


def measure_areas(expected: Sequence[Tensor], got: Sequence[Tensor]) -> Areas | None:
    """Return the mean intersection over union with the float model's own areas, over all samples.

    The mean is over the classes that the float model predicts, the background included, as usual in
    the field. For a map with a single probability per place, the mean is over thresholds.

    Args:
        expected, got: The float model's and the candidate's values, an array per sample.

    Returns:
        None where the float model gives no class `_FEWEST_PLACES` times.
    """
    if is_single(expected[0]) and expected[0].dtype.kind == "f":
        levels = _levels(expected)
        counts: list[list[list[float]]] = [
            _over_levels(*pair, levels) for pair in zip(expected, got, strict=True)
        ]
        names = [f"threshold {threshold:g}" for threshold in _THRESHOLDS]
    else:
        wanted = [classes_of(value) for value in expected]
        known = np.unique(np.concatenate([np.unique(value) for value in wanted]))
        counts = []
        for value, want, other in zip(expected, wanted, got, strict=True):
            have = _like(want, other)
            counts.append(_by_class(want, have, known, _costs(value, want, have)))
        names = [f"class {number}" for number in known]
    both, want, have = np.moveaxis(np.asarray(counts, np.float64), 1, 0)
    counted = want.sum(0) >= _FEWEST_PLACES
    if not counted.any():
        return None
    both, union = both[:, counted], (want + have - both)[:, counted]
    shares = both.sum(0) / union.sum(0)
    without = (both.sum(0) - both) / np.maximum(union.sum(0) - union, 1.0)
    least = int(shares.argmin())
    name = [name for name, is_counted in zip(names, counted, strict=True) if is_counted][least]
    unions = np.maximum(union, 1.0)
    own = np.where(union > 0.0, both / unions, 1.0)
    return Areas(
        value=float(shares.mean()),
        low=jackknife_low(float(shares.mean()), without.mean(1).tolist()),
        words=f"least at {name}, {format_metric(float(shares[least]))}, of {len(shares)}",
        losses=1.0 - own.mean(axis=1),
    )


def is_single(value: Tensor) -> bool:
    """Return True if a map holds a single number for each place, not a number for each class."""
    return value.ndim < 3 or value.shape[channel_axis(value) or 0] == 1


def classes_of(value: Tensor) -> Classes:
    """Return the class of each place, int64, without the axis of classes; -1 if a score is NaN."""
    if value.dtype.kind != "f":
        return value.astype(np.int64)
    axis = channel_axis(value) or 0
    best = value.argmax(axis).astype(np.int64)
    return np.where(np.isnan(value).any(axis), -1, best)


def channel_axis(value: Tensor) -> int | None:
    """Return the axis of channels or classes: the second axis or the last, whichever is shorter.

    Return None for fewer than four axes, which have no channels.
    """
    if value.ndim < 4:
        return None
    return 1 if value.shape[1] <= value.shape[-1] else value.ndim - 1


def _like(want: Classes, have: Tensor) -> Classes:
    """Return a candidate's classes; -1 everywhere if the shape differs."""
    classes = classes_of(have)
    return classes if classes.shape == want.shape else np.full(want.shape, -1, np.int64)


def _by_class(
    want: Classes, have: Classes, known: Classes, costs: Floats | None
) -> list[list[float]]:
    """Return the places of each class in both maps, in the first and in the second.

    A place that differs counts as the same by as much as the float model itself hesitated there:
    the float model's own mistakes are not ground truth.

    Args:
        want, have: Classes of the float model's map and of another.
        known: The classes that count, ascending.
        costs: float64, cost of another class at each place; None for 1.
    """
    first, second = want.ravel(), have.ravel()
    differs = first != second
    cost = np.ones(int(differs.sum())) if costs is None else costs.ravel()[differs]
    count = len(known)
    of_want = np.searchsorted(known, first)
    same = np.bincount(of_want[~differs], minlength=count).astype(np.float64)
    excused = np.bincount(of_want[differs], 1.0 - cost, minlength=count)
    among = np.isin(second[differs], known)
    other = np.searchsorted(known, second[differs][among])
    come = np.bincount(other, cost[among], minlength=count)
    both = same + excused
    return [both.tolist(), np.bincount(of_want, minlength=count).tolist(), (both + come).tolist()]


def _costs(value: Tensor, want: Classes, have: Classes) -> Floats | None:
    """Return the cost of another class than the float model's at each place.

    Args:
        value: The float model's scores or probabilities; whole numbers tell nothing.
        want, have: Classes of the float model and of the candidate.

    Returns:
        p(own class) - p(other class), by the float model; None without probabilities.
    """
    axis = channel_axis(value)
    if value.dtype.kind != "f" or axis is None:
        return None
    scores = np.moveaxis(value.astype(np.float64), axis, -1)
    if not np.isfinite(scores).all():
        return None
    is_share = bool((scores >= 0.0).all()) and bool(np.allclose(scores.sum(-1), 1.0, atol=1e-2))
    if not is_share:
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores = scores / scores.sum(axis=-1, keepdims=True)
    own = np.take_along_axis(scores, want[..., None], axis=-1)[..., 0]
    is_known = (have >= 0) & (have < scores.shape[-1])
    other = np.take_along_axis(scores, np.where(is_known, have, 0)[..., None], axis=-1)[..., 0]
    return np.asarray(np.where(is_known, np.clip(own - other, 0.0, 1.0), 1.0))


def foreground_level(values: Floats) -> float:
    """Return the threshold of the foreground in a map of logits, probabilities or 0…255."""
    if float(values.min()) < 0.0:
        return 0.0
    return 0.5 if float(values.max()) <= 1.0 else 127.5


def _levels(expected: Sequence[Tensor]) -> list[float]:
    """Return the thresholds as values: of probabilities, of logits, or of 0…255."""
    least = min(float(value.min()) for value in expected)
    most = max(float(value.max()) for value in expected)
    if least < 0.0:
        return [float(np.log(share / (1.0 - share))) for share in _THRESHOLDS]
    return [share * (1.0 if most <= 1.0 else 255.0) for share in _THRESHOLDS]


def _over_levels(want: Tensor, have: Tensor, levels: Sequence[float]) -> list[list[float]]:
    wide = want.astype(np.float64)
    given = have.astype(np.float64) if have.shape == want.shape else np.full(want.shape, np.nan)
    pairs = [(wide >= level, given >= level) for level in levels]
    return [
        [float((a & b).sum()) for a, b in pairs],
        [float(a.sum()) for a, _ in pairs],
        [float(b.sum()) for _, b in pairs],
    ]
