"""A sequential test: is a share, of failures or disagreements, greater than a limit? Pure.

The test is a mixture e-value. The test compares "the share is `limit`" with all greater shares,
weighted by a Beta(1/2, 1/2) distribution that is cut at `limit`. By Ville's inequality, a share at
the limit reaches `1 / alpha` with a probability of at most `alpha`, however often the device looks.
This holds for independent trials, so trials must be spaced in time.
"""

import math
from array import array
from functools import lru_cache

_POINTS = 20_000
"""Points of the integral. The likelihood of 100,000 pairs spans more than 20 points."""
_LEAST = -40.0
"""Smaller logarithms, from the greatest, change no digit of a sum."""


def log_evidence(hits: int, trials: int, limit: float) -> float:
    """Return the natural logarithm of the e-value against "a share of at most `limit`".

    Args:
        hits: Trials that failed, or disagreed.
        trials: All trials.
        limit: The tolerated share, 0 < limit <= 1; of 1 there is never any evidence.
    """
    if limit >= 1.0:
        return -math.inf
    misses = trials - hits
    logs = [hits * hit + misses * miss for hit, miss in zip(*_points(limit), strict=True)]
    greatest = max(logs)
    shares = (math.exp(one - greatest) for one in logs if one - greatest > _LEAST)
    return greatest + math.log(math.fsum(shares) / _POINTS)


@lru_cache(4)
def _points(limit: float) -> "tuple[array[float], array[float]]":
    """Return the logarithms of the likelihood ratios of a hit and of a miss at each point.

    With q = sin(t)**2, Beta(1/2, 1/2) is uniform in t: the mean over t is the integral.
    """
    lowest = math.asin(math.sqrt(limit))
    steps = ((number + 0.5) / _POINTS for number in range(_POINTS))
    shares = [math.sin(lowest + step * (math.pi / 2 - lowest)) ** 2 for step in steps]
    miss = math.log1p(-limit)
    return (
        array("d", [math.log(share / limit) for share in shares]),
        array("d", [math.log1p(-share) - miss for share in shares]),
    )


def is_beyond_doubt(hits: int, trials: int, limit: float, alpha: float) -> bool:
    """Check whether a share is greater than `limit`, with an error rate of at most `alpha`."""
    # No share below the limit is evidence; this also spares the integral in the common case.
    if hits <= limit * trials:
        return False
    return log_evidence(hits, trials, limit) >= -math.log(alpha)
