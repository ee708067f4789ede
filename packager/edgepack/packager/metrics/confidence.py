"""How sure a number is that comes from a few samples: lower bounds, one-sided, 95 %.

Thirty held-out samples that all agree do not show that every sample will: nine in a hundred could
differ, and thirty would still often look like that.
"""

import math
from collections.abc import Sequence

_Z = 1.645
"""Standard normal quantile of 95 %."""


def share_low(share: float, count: int) -> float:
    """Lower bound of a share (Wilson's score interval).

    Args:
        share: Observed share, 0…1.
        count: Independent observations, > 0.
    """
    z2 = _Z**2 / count
    middle = share + z2 / 2.0
    half = _Z * math.sqrt(share * (1.0 - share) / count + z2 / (4.0 * count))
    return max(0.0, (middle - half) / (1.0 + z2))


def kept_low(lost: Sequence[float], whole: Sequence[float]) -> float:
    """Lower bound of 1 - sum(lost) / sum(whole), by how much samples differ in it.

    The standard error is that of a ratio estimator (Cochran, Sampling Techniques, 6.4).

    Args:
        lost, whole: One entry a sample, >= 0; the sum of `whole` is > 0.
    """
    count = len(lost)
    ratio = sum(lost) / sum(whole)
    if count < 2:
        return 1.0 - ratio
    mean = sum(whole) / count
    spread = sum((a - ratio * b) ** 2 for a, b in zip(lost, whole, strict=True)) / (count - 1)
    return 1.0 - ratio - _Z * math.sqrt(spread / count) / mean
