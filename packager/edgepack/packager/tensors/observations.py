"""Observations of a tensor in calibration: bounds and a histogram, for any number of samples."""

import math

import msgspec
import numpy as np

from edgepack.tasks.arrays import Floats, Integers, Singles

BINS = 2048

Histogram = tuple[Floats, Floats]
"""Counts and bin centers, float64 (BINS,) each."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Values of a tensor over all samples.

    Attributes:
        low, high: Least and greatest value, maybe infinite.
        counts: int64 (BINS,), values per bin between `low` and `high`; None where no histogram
            was taken.
    """

    low: float
    high: float
    counts: Integers | None = None

    @property
    def is_finite(self) -> bool:
        """True if all values are finite, so that a scale can hold them."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def histogram(self) -> Histogram:
        """Return the counts and bin centers.

        Raises:
            ValueError: No histogram was taken.
        """
        if self.counts is None:
            raise ValueError("no histogram was taken of this tensor")
        width = (self.high - self.low) / BINS
        centers = self.low + (np.arange(BINS, dtype=np.float64) + 0.5) * width
        return self.counts.astype(np.float64), centers.astype(np.float64)


NOTHING_SEEN = Observation(low=0.0, high=0.0)
"""Of a tensor that is empty in every sample, as the past of a first step is: any scale will do."""


def count_into(counts: Integers, values: Singles, low: float, high: float) -> None:
    """Add values to a histogram over [low, high], in place.

    In a range narrower than 32-bit floats can divide all values count as equal.
    """
    if high - low <= BINS / np.finfo(np.float32).max:
        counts[0] += values.size
        return
    positions = ((values - np.float32(low)) * np.float32(BINS / (high - low))).astype(np.int32)
    np.clip(positions, 0, BINS - 1, out=positions)
    counts += np.bincount(positions, minlength=BINS)
