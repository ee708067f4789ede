"""Drift windows: did a feature change for good on this device, and does the change do harm? Pure.

1. A window is the mean of a feature over ten minutes. Its distance from the build's mean counts in
   the spread of windows. The spread comes from the device's own first day, since days differ more
   than a build's samples show.
2. A feature changed if three windows in a row are beyond the bound on the same side, or if the mean
   of a day is. The bounds hold for normal and exponential tails, and leave a false change in 1 % of
   months: 4,320 windows, all features.
3. A change does harm if the confidence falls so far that the task loses 5 % or more. A change
   without harm is only shown.
4. Wrong answers also move the mix of classes away from the first day's mix. If the same classes
   come as before, the moved share is the least loss. The loss is then the geometric mean of both
   estimates.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from statistics import NormalDist

import msgspec

from edgepack.bundle.features import CONFIDENCE
from edgepack.bundle.metadata import Feature

WINDOW_S = 600.0
"""Seconds of a window, at least."""

DAY_WINDOWS = 144
IN_A_ROW = 3
RECENT_WINDOWS = 10
"""Windows of which the confidence is compared: a thousand inferences or more."""

FALSE_CHANGES = 0.01
"""Share of months with a false change."""

_MONTH_DAYS = 30

LEAST_FALL = 0.02
"""Fall of the confidence that counts as harm. Of 28 shifts that cost three classifiers and readers
3 points of accuracy or more, each fell by more; so did 4 of 34 harmless shifts."""

_LATEST = 0.25
"""Weight of the last window in the latest mean of a class."""

_WHOLE = 1e-4
"""Distance from 1 up to which the build's means of classes are shares of a whole."""

LEAST_LOSS = 0.05
"""Share of the task that harm costs, at least: the estimate is good to half or double the loss."""


class FeatureWindows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Windows of a feature, in constant space.

    Attributes:
        learnt: Windows of the first day so far.
        mean, squares: Their mean, and the sum of squared distances from the mean.
        farthest: Greatest distance of a window of the first day from the mean so far.
        beyond: Windows in a row beyond the bound; negative below the build's mean.
        day_count, day_total: Windows of the current day after the first.
        is_day_off: Whether the mean of the last whole day was beyond its bound.
        recent: The last windows of a confidence, oldest first.
        moved: Distance of a class in the latest windows from the first day's mean.
    """

    learnt: int = 0
    mean: float = 0.0
    squares: float = 0.0
    farthest: float = 0.0
    beyond: int = 0
    day_count: int = 0
    day_total: float = 0.0
    is_day_off: bool = False
    recent: tuple[float, ...] = ()
    moved: float = 0.0

    @property
    def is_changed(self) -> bool:
        """True if the feature changed for good."""
        return self.is_day_off or abs(self.beyond) >= IN_A_ROW

    def with_window(self, feature: Feature, value: float, features: int) -> "FeatureWindows":
        """Return the windows with another window.

        Args:
            feature: The build's mean and spread.
            value: Mean of the window.
            features: Features that are looked at together.
        """
        learnt, mean, squares, farthest = self.learnt, self.mean, self.squares, self.farthest
        day_count, day_total, is_day_off = self.day_count, self.day_total, self.is_day_off
        moved = self.moved
        if learnt < DAY_WINDOWS:
            learnt += 1
            step = value - mean
            mean += step / learnt
            squares += step * (value - mean)
            farthest = max(farthest, abs(value - mean))
        else:
            day_count, day_total = day_count + 1, day_total + value
            moved += _LATEST * (value - mean - moved)
        variance = self._variance(feature)
        apart = value - feature.mean
        error = math.sqrt(variance + feature.spread**2 / feature.samples)
        beyond = 0
        bound = window_bound(features) * error
        if self.learnt == DAY_WINDOWS:
            bound = max(bound, _tail(features) * farthest)
        if abs(apart) > bound:
            side = 1 if apart > 0 else -1
            beyond = self.beyond + side if self.beyond * side >= 0 else side
        if day_count == DAY_WINDOWS:
            error = math.sqrt(variance / DAY_WINDOWS + feature.spread**2 / feature.samples)
            apart = day_total / DAY_WINDOWS - feature.mean
            is_day_off = abs(apart) / error > day_bound(features)
            day_count, day_total = 0, 0.0
        return FeatureWindows(
            learnt=learnt,
            mean=mean,
            squares=squares,
            farthest=farthest,
            beyond=max(-RECENT_WINDOWS, min(beyond, RECENT_WINDOWS)),
            day_count=day_count,
            day_total=day_total,
            is_day_off=is_day_off,
            recent=(*self.recent, value)[-RECENT_WINDOWS:] if feature.name == CONFIDENCE else (),
            moved=moved if feature.kind == "class" else 0.0,
        )

    def fall(self, feature: Feature) -> float:
        """Return the fall of the feature in the recent windows; 0 while chance explains the fall.

        Windows in a row below the bound count alone, so that a sudden fall counts whole.
        """
        is_sudden = self.beyond <= -IN_A_ROW
        count = -self.beyond if is_sudden else RECENT_WINDOWS
        if len(self.recent) < count:
            return 0.0
        fall = feature.mean - sum(self.recent[-count:]) / count
        error = math.sqrt(self._variance(feature) / count + feature.spread**2 / feature.samples)
        least = LEAST_FALL if is_sudden else max(LEAST_FALL, _RECENT_BOUND * error)
        return fall if fall > least else 0.0

    @property
    def moved_beyond_chance(self) -> float:
        """Return the distance `moved`, less the variance that it has by chance."""
        chance = self.squares / (DAY_WINDOWS - 1) * (_LATEST / (2 - _LATEST) + 1 / DAY_WINDOWS)
        return math.sqrt(max(0.0, self.moved**2 - chance))

    def _variance(self, feature: Feature) -> float:
        """Return the variance of windows; during the first day, that of single inferences.

        The inferences of a window cannot vary more if all of them are alike.
        """
        if self.learnt < DAY_WINDOWS:
            return feature.spread**2
        return self.squares / (self.learnt - 1)


@lru_cache
def window_bound(features: int) -> float:
    """Return the standard errors that a window's mean may be off, of normal windows.

    Args:
        features: Features that are looked at together, at least 1.
    """
    return -NormalDist().inv_cdf(_window_chance(features))


@lru_cache
def _tail(features: int) -> float:
    """Return how far a window may be off as a multiple of the farthest window of the first day.

    Of windows with an exponential tail, such as a confidence that is nearly always 1.
    """
    return math.log(_window_chance(features)) / math.log(1 / DAY_WINDOWS)


def _window_chance(features: int) -> float:
    """Return the chance of a window beyond the bound on one side."""
    chance = FALSE_CHANGES / (_MONTH_DAYS * DAY_WINDOWS)
    return float(chance ** (1 / IN_A_ROW) / (2 * features))


@lru_cache
def day_bound(features: int) -> float:
    """Return the standard errors that the mean of a day may be off; see `window_bound`."""
    return -NormalDist().inv_cdf(FALSE_CHANGES / _MONTH_DAYS / (2 * features))


_RECENT_BOUND = -NormalDist().inv_cdf(FALSE_CHANGES / (_MONTH_DAYS * DAY_WINDOWS))
"""Standard errors that the mean of the recent windows may be off: each window is a look."""


def estimate_loss(features: Iterable[tuple[Feature, FeatureWindows]]) -> float | None:
    """Return the share of the task that fallen confidence costs, about; None below 5 %.

    The greatest loss of the confidences counts. The estimate is good to half or double the loss.

    Args:
        features: Features of the build, with their windows.
    """
    known = list(features)
    losses = []
    for feature, windows in known:
        if feature.name == CONFIDENCE:
            loss = windows.fall(feature) * (feature.loss_by_confidence or 1.0)
            moved = _moved_share(known, feature.tensor) if loss else 0.0
            losses.append(min(1.0, math.sqrt(loss * max(loss, moved))))
    return max((one for one in losses if one >= LEAST_LOSS), default=None)


def _moved_share(features: Iterable[tuple[Feature, FeatureWindows]], tensor: str) -> float:
    """Return the share of answers that moved to other classes since the first day, 0…1.

    0 where classes are not shares of a whole, such as numbers of boxes.
    """
    classes = [one for one in features if one[0].kind == "class" and one[0].tensor == tensor]
    if abs(math.fsum(feature.mean for feature, _ in classes) - 1.0) > _WHOLE:
        return 0.0
    return math.fsum(windows.moved_beyond_chance for _, windows in classes) / 2.0
