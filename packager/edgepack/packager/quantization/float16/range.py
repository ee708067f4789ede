"""Whether values survive as 16-bit floats: none too large, none that matters lost as too small."""

import numpy as np

from edgepack.packager.profiles.pass_settings import LARGEST_FLOAT16
from edgepack.packager.tensors.arrays import Singles

LEAST_NORMAL = 2.0**-14
"""Below this, 16-bit floats lose a digit with every halving."""

_MOST_CHANGE = 0.1
"""Relative change of a single constant: what is beyond it (1e-12 becomes 0) guards nothing."""


def activation_fits(low: float, high: float, largest: float) -> bool:
    """Whether a tensor with these bounds can be 16-bit.

    Args:
        low, high: Least and greatest value on the calibration samples.
        largest: Greatest magnitude allowed.
    """
    size = max(abs(low), abs(high))
    return size == 0.0 or LEAST_NORMAL <= size <= largest


def constant_fits(values: Singles) -> bool:
    """Whether a constant can be 16-bit; infinities can, and small weights among larger ones."""
    finite = np.abs(values[np.isfinite(values)])
    if not finite.size or not finite.any():
        return True
    if finite.max() > LARGEST_FLOAT16:
        return False
    if finite.size > 1:
        return bool(finite.max() >= LEAST_NORMAL)
    change = np.abs(finite.astype(np.float16).astype(np.float32) - finite)
    return bool((change <= _MOST_CHANGE * finite).all())
