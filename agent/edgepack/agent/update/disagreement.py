"""A sequential test: does a release disagree with the previous release too often? Pure.

The test is a mixture e-value. The test compares "the share of disagreeing pairs is `limit`" with
all greater shares, weighted by a Beta(1/2, 1/2) distribution that is cut at `limit`. By Ville's
inequality, a release at the limit reaches `1 / ALPHA` with a probability of at most `ALPHA`,
however often the device looks. This holds for independent pairs, so pairs must be spaced in time.
"""

import math

import numpy as np

ALPHA = 5e-4
"""Probability that a release at the limit is rolled back. Half of 1e-3, since spaced pairs still
depend on each other: in simulation, pairs three correlation times apart gave .0008 to .0023."""

_POINTS = 20_000
"""Points of the integral. The likelihood of 100,000 pairs spans more than 20 points."""


def log_evidence(disagreed: int, compared: int, limit: float) -> float:
    """Return the natural logarithm of the e-value against "at most `limit` disagree".

    Args:
        disagreed: Pairs in which both releases gave different answers.
        compared: All pairs.
        limit: The share that may disagree, 0 < limit <= 1; of 1 there is never any evidence.
    """
    if limit >= 1.0:
        return -math.inf
    lowest = math.asin(math.sqrt(limit))
    # With q = sin(t)**2, Beta(1/2, 1/2) is uniform in t: the mean over t is the integral.
    steps = (np.arange(_POINTS) + 0.5) / _POINTS
    share = np.sin(lowest + steps * (math.pi / 2 - lowest)) ** 2
    logs = disagreed * np.log(share / limit)
    logs += (compared - disagreed) * (np.log1p(-share) - math.log1p(-limit))
    greatest = float(logs.max())
    return greatest + math.log(float(np.mean(np.exp(logs - greatest))))


def is_beyond_doubt(disagreed: int, compared: int, limit: float) -> bool:
    """Check whether a release disagrees with the previous release in more than `limit`."""
    # No share below the limit is evidence; this also spares the integral in the common case.
    if disagreed <= limit * compared:
        return False
    return log_evidence(disagreed, compared, limit) >= -math.log(ALPHA)
