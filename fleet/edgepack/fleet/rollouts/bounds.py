"""Confidence bounds of a mean or a share over devices, one-sided.

That of a mean is by Student's t, that of a share by the binomial distribution.

The unit is the device, not the inference: inferences of a device resemble each other, so a thousand
inferences on a single device prove nothing about the next device. Each device gives a single
number, and the spread between the devices gives the error of their mean.

The bound has a confidence of 97.5 %: the lower end of a 95 % interval. A gate's threshold lies
above no change, so at equal speed chance breaches a gate much less often than once in 40.
"""

import math
from typing import NamedTuple

_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Quantiles of Student's distribution by degrees of freedom from 1, as tables have them."""
_Z = 1.959964
"""The same of the normal distribution."""
_Z_OFTEN = 2.807034
"""That of a confidence of 99.75 %, for what is looked at after each device: at 97.5 % a wave of
which 8 % fail is stopped by chance in 4 of 100 cases, where 10 % is let pass; so in less than 1."""
_SELDOM = 0.0025
_EXACT_HITS = 50
_HALVINGS = 30


class Mean(NamedTuple):
    """A mean over devices.

    Attributes:
        devices: How many.
        value: The mean.
        bound: Lower bound of the true mean with a confidence of 97.5 %.
    """

    devices: int
    value: float
    bound: float


def quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t with this number of degrees of freedom (1 or
    more).
    """
    if freedom <= len(_T):
        return _T[freedom - 1]
    # Two terms of the expansion around the normal distribution: off by less than 0.001 here.
    z = _Z
    first = (z**3 + z) / (4 * freedom)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def least_share(hits: int, devices: int) -> float:
    """Return the lower bound of the share with 99.75 % confidence, from hits among devices.

    For few hits the bound is exact (Clopper and Pearson, Biometrika 26, 1934), for more hits the
    bound is Wilson's with continuity correction (method 4 of Newcombe, Statistics in Medicine 17,
    1998). At the transition Wilson's bound may be lower by .0002; the result never falls with more
    hits.

    Args:
        hits: How many, 0 to `devices`.
        devices: 1 or more.
    """
    if hits > _EXACT_HITS:
        share, square = hits / devices, _Z_OFTEN * _Z_OFTEN
        root = square - 2 - 1 / devices + 4 * share * (devices * (1 - share) + 1)
        bound = 2 * devices * share + square - 1 - _Z_OFTEN * math.sqrt(root)
        return max(bound / (2 * (devices + square)), least_share(_EXACT_HITS, devices))
    low, high = 0.0, hits / devices
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if hits and _chance(hits, devices, middle) < _SELDOM:
            low = middle
        else:
            high = middle
    return low


def _chance(hits: int, devices: int, share: float) -> float:
    """Return the probability of at least this number of hits among devices, for a share of hits."""
    log_hit, log_miss = math.log(share), math.log1p(-share)
    whole = math.lgamma(devices + 1)
    fewer = (
        whole
        - math.lgamma(k + 1)
        - math.lgamma(devices - k + 1)
        + k * log_hit
        + (devices - k) * log_miss
        for k in range(hits)
    )
    return 1.0 - math.fsum(map(math.exp, fewer))


def bound_of_few(devices: int, value: float, spread: float) -> float:
    """Return the lower bound of the true mean of 1 or 2 devices with a confidence of 97.5 %.

    So few devices cannot show how far devices differ, so a spread is assumed.

    Args:
        devices: How many, 1 or more.
        value: Mean of their numbers.
        spread: Standard deviation of a device's number; see `Gate.spread`.
    """
    return value - _Z * spread / math.sqrt(devices)


def mean_of(devices: int, total: float, squares: float) -> Mean:
    """Return a mean and its bound from sums.

    Args:
        devices: How many, 2 or more.
        total: Sum of their numbers.
        squares: Sum of the squares of their numbers.
    """
    value = total / devices
    # Sums that were added to and taken from may round below zero.
    variance = max(0.0, (squares - total * value) / (devices - 1))
    margin = quantile(devices - 1) * math.sqrt(variance / devices)
    return Mean(devices, value, value - margin)
