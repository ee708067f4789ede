"""A sequential test: is a share, of failures or disagreements, greater than a limit? Pure.

The test is a mixture e-value. The test compares "the share is `limit`" with all greater shares,
weighted by a Beta(1/2, 1/2) distribution that is cut at `limit`. By Ville's inequality, a share at
the limit reaches `1 / alpha` with a probability of at most `alpha`, however often the device looks.
This holds for independent trials, so trials must be spaced in time.
"""

import math

_CLOSE = 1e-12
_TINY = 1e-300
_STEPS = 100_000


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
    prior = math.log(math.pi - 2.0 * math.asin(math.sqrt(limit)))
    likelihood = hits * math.log(limit) + misses * math.log1p(-limit)
    return _log_tail(hits + 0.5, misses + 0.5, limit) - prior - likelihood


def _log_tail(a: float, b: float, limit: float) -> float:
    """Return the logarithm of the integral of x**(a-1) * (1-x)**(b-1) from `limit` to 1."""
    whole = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    power = a * math.log(limit) + b * math.log1p(-limit)
    if limit > (a + 1.0) / (a + b + 2.0):
        return power + math.log(_fraction(b, a, 1.0 - limit) / b)
    below = math.exp(power - whole) * _fraction(a, b, limit) / a
    return whole + math.log1p(-below)


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0))
    found = d
    for m in range(1, _STEPS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / (1.0 + numerator * d or _TINY)
            c = 1.0 + numerator / c or _TINY
            found *= c * d
        if abs(c * d - 1.0) < _CLOSE:
            break
    return found


def is_beyond_doubt(hits: int, trials: int, limit: float, alpha: float) -> bool:
    """Check whether a share is greater than `limit`, with an error rate of at most `alpha`."""
    # No share below the limit is evidence; this also spares the integral in the common case.
    if hits <= limit * trials:
        return False
    return log_evidence(hits, trials, limit) >= -math.log(alpha)
