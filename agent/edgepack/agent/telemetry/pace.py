"""Pace of a release: latencies of the last hour by interval, for comparison with the next release.

The journal of telemetry stores the pace, so that the pace survives the switch to another release
and a restart.
"""

from collections.abc import Iterable, Mapping

import msgspec

from edgepack.wire.histogram import LEAST_MS, empty, merge, percentile
from edgepack.wire.telemetry import Histogram, Telemetry

INTERVAL_S = 60.0
FEWEST = 12
"""Inferences of an interval; one with fewer continues."""
KEPT = 60
"""Intervals: an hour of them, when each is a minute long."""
MAX_RELEASES = 16


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of an interval: only the slowest inferences exceed `latency_ms`.

    Attributes:
        latency_ms: See `typical_ms`.
        count: Inferences.
        length_s: Length, seconds.
    """

    latency_ms: float
    count: int
    length_s: float = 0.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies of a release.

    Attributes:
        intervals: Complete intervals, the newest last.
        older, recent: Latencies of these intervals, in two parts: a full part replaces the older
            part.
        recent_intervals: How many intervals `recent` has.
        current: Latencies of the interval that is under way.
        current_s: Length so far, seconds.
        seen_at: When its last inferences were reported, seconds since the epoch; 0 for never.
        first_tokens: The same of the times to the first token; None for a release that wrote no
            texts.
    """

    intervals: tuple[Interval, ...] = ()
    older: Histogram = msgspec.field(default_factory=empty)
    recent: Histogram = msgspec.field(default_factory=empty)
    recent_intervals: int = 0
    current: Histogram = msgspec.field(default_factory=empty)
    current_s: float = 0.0
    seen_at: float = 0.0
    first_tokens: "Pace | None" = None

    def plus(self, window: Telemetry, interval_s: float) -> "Pace":
        """Return the pace with the inferences of another window of the same release.

        Args:
            window: Next window.
            interval_s: Length of an interval, seconds.
        """
        first_tokens = self.first_tokens
        if window.first_tokens is not None:
            of_texts = msgspec.structs.replace(
                window, latency=window.first_tokens, first_tokens=None
            )
            first_tokens = (first_tokens or Pace()).plus(of_texts, interval_s)
        pace = self._plus(window, interval_s)
        return msgspec.structs.replace(pace, first_tokens=first_tokens)

    def _plus(self, window: Telemetry, interval_s: float) -> "Pace":
        current = merge((self.current, window.latency))
        current_s = self.current_s + window.window_s
        seen_at = window.window_start + window.window_s
        if current_s < interval_s or current.count < FEWEST:
            return msgspec.structs.replace(
                self, current=current, current_s=current_s, seen_at=seen_at
            )
        interval = Interval(
            latency_ms=typical_ms(current, current.count),
            count=current.count,
            length_s=current_s,
        )
        is_full = self.recent_intervals >= KEPT // 2
        return Pace(
            intervals=(*self.intervals, interval)[-KEPT:],
            older=self.recent if is_full else self.older,
            recent=current if is_full else merge((self.recent, current)),
            recent_intervals=1 if is_full else self.recent_intervals + 1,
            seen_at=seen_at,
        )

    @property
    def count(self) -> int:
        """Inferences of the kept intervals, and of the current interval."""
        return sum(one.count for one in self.intervals) + self.current.count

    @property
    def latency(self) -> Histogram:
        """Latencies of all complete intervals."""
        return merge((self.older, self.recent))


def typical_ms(latency: Histogram, count: int) -> float:
    """Return the latency that only the slowest sixth, or two if they are more, of `count` exceed.

    All intervals are read at the same percentile, since each has `FEWEST` inferences.

    Args:
        latency: Histogram of at least 1 inference.
        count: Number of inferences that sets the percentile, 5 or more; another histogram's count
            reads both at the same percentile.
    """
    return max(LEAST_MS, percentile(latency, 100 * (1 - 2 / min(count, FEWEST))))


class PaceKeeper:
    """Keeps the pace of a device's releases.

    Args:
        interval_s: Length of an interval, seconds.
        paces: The pace of each variant, by digest and name, as stored; the latest comes last.
    """

    def __init__(self, interval_s: float, paces: Mapping[str, Pace] = {}) -> None:
        self._interval_s = interval_s
        self._paces = dict(paces)

    @property
    def paces(self) -> dict[str, Pace]:
        """The pace of each variant, by digest and name."""
        return dict(self._paces)

    def of(self, digest: str, variant: str) -> Pace:
        """Return the pace of a release's variant; an empty pace if the variant never served."""
        return self._paces.get(f"{digest} {variant}", Pace())

    def add(self, windows: Iterable[Telemetry]) -> None:
        """Add the windows of serving processes."""
        for window in windows:
            if window.latency.count:
                key = f"{window.digest} {window.variant}"
                before = self._paces.pop(key, Pace())
                self._paces[key] = before.plus(window, self._interval_s)
        while len(self._paces) > MAX_RELEASES:
            del self._paces[next(iter(self._paces))]
