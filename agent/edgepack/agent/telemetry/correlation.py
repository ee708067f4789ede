"""Correlation time of a model's inputs: how long frames of a scene resemble each other.

Neighbouring frames repeat their verdicts, so a test that assumes independent inferences must take
them far enough apart. Memory is constant: a full record drops every other observation, or the older
half once a longer pause would be too coarse.
"""

import math

import numpy as np

from edgepack.tasks.arrays import Floats, Tensor

FIRST_PAUSE_S = 0.2
"""Seconds between two observations at first."""
MOST = 256
"""Observations; a full record is thinned, and the pause doubles."""
FEWEST = 32
SEGMENTS = 16
"""Parts of an input whose means are the features of a frame."""
_LENGTHS = 10.0
"""A record has at least so many correlation times: a shorter record underestimates the spread."""


_FINEST = 6.0
"""Pauses in a correlation time below which the pause is not doubled."""


class CorrelationTime:
    """Estimator from frames at irregular times."""

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._times: list[float] = []
        self._frames: list[Floats] = []

    def is_due(self, now: float) -> bool:
        """Check whether a frame is to be observed.

        Args:
            now: Monotonic clock, seconds.
        """
        return not self._times or now - self._times[-1] >= self._pause_s

    def observe(self, frame: Tensor, now: float) -> None:
        """Add a frame.

        Args:
            frame: Some values of an input, of any shape; always of the same size.
            now: Monotonic clock, seconds.
        """
        features = segment_means(frame)
        if self._frames and features.shape != self._frames[0].shape:
            self._times, self._frames = [], []
        self._times.append(now)
        self._frames.append(features)
        if len(self._times) >= MOST:
            known_s = self.seconds()
            is_coarse = known_s is not None and known_s < _FINEST * self._pause_s
            kept = slice(MOST // 2, None) if is_coarse else slice(None, None, 2)
            self._times, self._frames = self._times[kept], self._frames[kept]
            self._pause_s *= 1 if is_coarse else 2

    def seconds(self) -> float | None:
        """Return the lag at which the autocorrelation falls below 1/e; None if not known yet.

        The autocorrelation is the mean over the features. A trend, or inputs that do not change,
        have no correlation time.
        """
        if len(self._times) < FEWEST:
            return None
        frames, times = np.stack(self._frames), np.array(self._times)
        spread = frames.var(axis=0)
        varies = spread > 1e-12 * (1.0 + frames.mean(axis=0) ** 2)
        if not varies.any():
            return None
        frames, spread = frames[:, varies], spread[varies]
        length_s = float(times[-1] - times[0])
        earlier_s, earlier = 0.0, 1.0
        for step in range(1, len(times) // 2):
            lag_s = float(np.median(times[step:] - times[:-step]))
            squares = ((frames[step:] - frames[:-step]) ** 2).mean(axis=0)
            found = 1.0 - float((squares / (2 * spread)).mean())
            if found < 1 / math.e:
                part = (earlier - 1 / math.e) / (earlier - found)
                crossing_s = earlier_s + part * (lag_s - earlier_s)
                # One pause is the finest that the record can tell.
                crossing_s = max(crossing_s, float(np.median(np.diff(times))))
                return crossing_s if length_s >= _LENGTHS * crossing_s else None
            earlier_s, earlier = lag_s, found
        return None


def segment_means(frame: Tensor) -> Floats:
    """Return means of equal parts of a frame; values that are not finite count as 0.

    Returns:
        float64 (n,), with n at most 16.
    """
    flat = np.nan_to_num(frame.astype(np.float64).ravel(), posinf=0.0, neginf=0.0)
    if flat.size <= SEGMENTS:
        return flat
    return np.asarray(flat[: flat.size - flat.size % SEGMENTS].reshape(SEGMENTS, -1).mean(axis=1))
