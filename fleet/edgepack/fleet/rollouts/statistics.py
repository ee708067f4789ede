"""Lower confidence bounds over devices: the methods of gates, in one table.

The unit is the device, not the inference: inferences of a device resemble each other, so a thousand
inferences on a single device prove nothing about the next device. Each device gives one number.

| method | number of a device | bound |
| --- | --- | --- |
| `lower_mean` | change, corrected for controls | moderated t, at scheduled looks |
| `lower_bet` | share, 0 to 1 | betting over devices, at any time |
| `lower_share` | 0 or 1 | beta-binomial over devices, at any time |

The weight 30 of the assumed spread was the best of 12, 30 and infinity in simulated rollouts
(`make bench-gates`, fresh seeds). Without weight, few devices that agree by chance prove anything;
with infinite weight, devices that differ more than assumed stop good releases.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

ALPHA = 0.025
"""Greatest probability that a release at its limits is stopped: all gates, classes and looks."""
WEIGHT = 30.0
"""Devices that the assumed spread counts for."""
POWER_Z = 1.2816
"""Quantile of the normal distribution for 9 of 10."""
CLIP = 3.0
"""Numbers of 3 devices or more are clipped at the limit plus and minus this number of standard
deviations: an odd device is not the release. A clipped number of 1 or 2 devices would exceed no
bound."""
LEAST_DEVICES = 3
"""Fewer devices are evidence about these devices only."""
_BETS = (0.05, 0.1, 0.2, 0.4, 0.7, 0.95)
_PRIOR = 0.5
_HALVINGS = 24
"""Bounds are exact to 1e-7 of the mean."""
_TINY = 1e-300


class Residuals(NamedTuple):
    """Distances of devices from their mean.

    Attributes:
        squares: Sum of squared distances, in units of the assumed variance.
        freedom: Degrees of freedom.
    """

    squares: float = 0.0
    freedom: int = 0


NO_RESIDUALS = Residuals()


def mean_and_residuals(
    numbers: Sequence[float], limit: float, spread: float
) -> tuple[float, Residuals]:
    """Return the mean of clipped numbers, and their residuals.

    Args:
        numbers: Change on each device.
        limit: Change that is tolerated: 3 devices or more are clipped around it.
        spread: Assumed standard deviation of a number.
    """
    clip = CLIP * spread if len(numbers) >= LEAST_DEVICES else math.inf
    clipped = [min(max(number, limit - clip), limit + clip) for number in numbers]
    mean = math.fsum(clipped) / len(clipped)
    squares = math.fsum(((number - mean) / spread) ** 2 for number in clipped)
    return mean, Residuals(squares, len(clipped) - 1)


def lower_mean(
    numbers: Sequence[float],
    limit: float,
    *,
    noise: float,
    effect: float,
    controls: int,
    alpha: float,
    common: float = 1.0,
    others: Residuals = NO_RESIDUALS,
) -> float:
    """Return the lower bound of the mean change over devices: moderated t.

    Args:
        numbers: Change on each device, less the mean change of its concurrent controls.
        limit: Change that is tolerated.
        noise: Standard deviation of a device's change without a cause (pairs A/A).
        effect: Standard deviation of the release's effect between devices.
        controls: Controls behind each number; 0 for numbers that are not corrected.
        alpha: Error probability of this bound.
        common: Share of the controls' error that the mean over devices keeps.
        others: Residuals of other hardware classes: devices that differ more than assumed show it
            there, too.
    """
    spread = math.hypot(noise, effect)
    count = len(numbers)
    mean, own = mean_and_residuals(numbers, limit, spread)
    freedom = WEIGHT + own.freedom + others.freedom
    variance = spread**2 * (WEIGHT + own.squares + others.squares) / freedom
    shared = common * noise**2 / controls if controls else 0.0
    return mean - t_quantile(alpha, freedom) * math.sqrt(variance / count + shared)


def find_least_change(
    limit: float, devices: int, *, noise: float, effect: float, controls: int, alpha: float
) -> float:
    """Return the least change that `lower_mean` finds in 9 of 10 rollouts."""
    spread = math.hypot(noise, effect)
    shared = noise**2 / controls if controls else 0.0
    error = math.sqrt(spread**2 / devices + shared)
    return limit + (t_quantile(alpha, WEIGHT - 1 + devices) + POWER_Z) * error


def bet_evidence(numbers: Sequence[float], limit: float) -> float:
    """Return the log e-value against a mean of at most `limit`: a mean of bets over devices.

    Args:
        numbers: 0 to 1, one for each device.
        limit: Above 0.
    """
    return _log_mean(
        [math.fsum(math.log1p(bet * (x / limit - 1)) for x in numbers) for bet in _BETS]
    )


def share_evidence(hits: int, devices: int, limit: float) -> float:
    """Return the log e-value against a share of at most `limit`: a beta-binomial mixture.

    Args:
        hits: 0 to `devices`.
        devices: Devices.
        limit: Above 0 and below 1.
    """
    misses = devices - hits
    return (
        _log_upper_beta(hits + _PRIOR, misses + _PRIOR, limit)
        - math.log(2 * math.acos(math.sqrt(limit)))  # the same integral of the prior
        - hits * math.log(limit)
        - misses * math.log1p(-limit)
    )


def lower_bet(numbers: Sequence[float], alpha: float) -> float:
    """Return the lower bound of the mean of shares over devices, valid at any time."""
    mean = math.fsum(numbers) / len(numbers)
    return _least_limit(lambda limit: bet_evidence(numbers, limit), mean, alpha)


@lru_cache(maxsize=4096)
def lower_share(hits: int, devices: int, alpha: float) -> float:
    """Return the lower bound of a share of devices, valid at any time."""
    share = hits / devices
    return _least_limit(
        lambda limit: share_evidence(hits, devices, limit), min(share, 1 - 1e-9), alpha
    )


@lru_cache(maxsize=4096)
def t_quantile(alpha: float, freedom: float) -> float:
    """Return the number that Student's t exceeds with probability `alpha` (below 0.5)."""
    low, high = 0.0, 1.0
    while _t_tail(high, freedom) > alpha:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_tail(middle, freedom) > alpha else (low, middle)
    return (low + high) / 2


def _least_limit(evidence: Callable[[float], float], mean: float, alpha: float) -> float:
    """Return the greatest limit that the evidence excludes; evidence falls as the limit rises."""
    if mean <= 0:
        return 0.0
    low, high = 0.0, mean
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle <= low:
            break  # No number is between both.
        low, high = (middle, high) if evidence(middle) >= -math.log(alpha) else (low, middle)
    return low


def _log_mean(logs: Sequence[float]) -> float:
    highest = max(logs)
    return highest + math.log(math.fsum(math.exp(x - highest) for x in logs) / len(logs))


def _t_tail(t: float, freedom: float) -> float:
    return beta_integral(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2


def _log_upper_beta(a: float, b: float, limit: float) -> float:
    whole = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return whole + math.log(max(beta_integral(b, a, 1 - limit), _TINY))


def beta_integral(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by Lentz's continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - beta_integral(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    value, upper, lower = 1.0, 1.0, 0.0
    for index in range(1000):
        half = index // 2
        if index == 0:
            term = 1.0
        elif index % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        lower = 1 / ((1 + term * lower) or _TINY)
        upper = (1 + term / upper) or _TINY
        value *= upper * lower
        if index and abs(upper * lower - 1) < 1e-14:
            break
    return front * (value - 1) / a
