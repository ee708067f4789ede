"""A sequential test: is a share, of failures or disagreements, greater than a limit? Pure.

The test is a mixture e-value. The test compares "the share is `limit`" with all greater shares,
weighted by a Beta(1/2, 1/2) distribution that is cut at `limit`. By Ville's inequality, a share at
the limit reaches `1 / alpha` with a probability of at most `alpha`, however often the device looks.
This holds for independent trials, so trials must be spaced in time.
"""

import math

import numpy as np

_POINTS = 20_000
"""Points of the integral. The likelihood of 100,000 pairs spans more than 20 points."""


def log_evidence(hits: int, trials: int, limit: float) -> float:
    """Return the natural logarithm of the e-value against "a share of at most `limit`".

    Args:
        hits: Trials that failed, or disagreed.
        trials: All trials.
        limit: The tolerated share, 0 < limit <= 1; of 1 there is never any evidence.
    """
    if limit >= 1.0:
        return -math.inf
    lowest = math.asin(math.sqrt(limit))
    # With q = sin(t)**2, Beta(1/2, 1/2) is uniform in t: the mean over t is the integral.
    steps = (np.arange(_POINTS) + 0.5) / _POINTS
    share = np.sin(lowest + steps * (math.pi / 2 - lowest)) ** 2
    logs = hits * np.log(share / limit)
    logs += (trials - hits) * (np.log1p(-share) - math.log1p(-limit))
    greatest = float(logs.max())
    return greatest + math.log(float(np.mean(np.exp(logs - greatest))))


def is_beyond_doubt(hits: int, trials: int, limit: float, alpha: float) -> bool:
    """Check whether a share is greater than `limit`, with an error rate of at most `alpha`."""
    # No share below the limit is evidence; this also spares the integral in the common case.
    if hits <= limit * trials:
        return False
    return log_evidence(hits, trials, limit) >= -math.log(alpha)
