"""Pace of a release: latencies of the last hour by interval, for comparison with the next release.

The agent stores the pace of the serving release on the disk, so that the pace survives the switch
to another release and a restart.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import StateFile
from edgepack.versions import Format, Version
from edgepack.wire.histogram import LEAST_MS, empty, merge, percentile
from edgepack.wire.messages import Histogram, Telemetry

log = logging.getLogger(__name__)

PACE_FILE = "latency-pace.json"
INTERVAL_S = 60.0
FEWEST = 12
"""Inferences of an interval; one with fewer continues. All but the slowest two count then."""
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
    """

    intervals: tuple[Interval, ...] = ()
    older: Histogram = msgspec.field(default_factory=empty)
    recent: Histogram = msgspec.field(default_factory=empty)
    recent_intervals: int = 0
    current: Histogram = msgspec.field(default_factory=empty)
    current_s: float = 0.0
    seen_at: float = 0.0

    def plus(self, window: Telemetry, interval_s: float) -> "Pace":
        """Return the pace with the inferences of another window of the same release.

        Args:
            window: Next window.
            interval_s: Length of an interval, seconds.
        """
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
    """Return the latency that all but the slowest 5 %, and at least two, of `count` do not exceed.

    Args:
        latency: Histogram of at least 1 inference.
        count: Number of inferences that sets the percentile, 5 or more; another histogram's count
            reads both at the same percentile.
    """
    return max(LEAST_MS, percentile(latency, 100 * min(0.95, 1 - 2 / count)))


class _Paces(msgspec.Struct, frozen=True, kw_only=True):
    """The pace of each variant, by digest and name; the latest variant comes last."""

    releases: dict[str, Pace] = {}


PACES = Format("latency pace", _Paces, Version(1, 0))


class PaceKeeper:
    """Keeps the pace of a device's releases.

    Args:
        state_dir: The agent's state folder.
        interval_s: Length of an interval, seconds.
    """

    def __init__(self, state_dir: Path, interval_s: float) -> None:
        self._file = StateFile(state_dir / PACE_FILE, PACES)
        self._interval_s = interval_s
        found = self._file.load()
        self._paces = dict(found.releases) if found else {}

    def of(self, digest: str, variant: str) -> Pace:
        """Return the pace of a release's variant; an empty pace if the variant never served."""
        return self._paces.get(f"{digest} {variant}", Pace())

    def add(self, windows: Iterable[Telemetry]) -> None:
        """Add the windows of serving processes, and store the pace after each complete interval."""
        is_complete = False
        for window in windows:
            if not window.latency.count:
                continue
            key = f"{window.digest} {window.variant}"
            before = self._paces.pop(key, Pace())
            after = self._paces[key] = before.plus(window, self._interval_s)
            is_complete |= after.intervals != before.intervals
        while len(self._paces) > MAX_RELEASES:
            del self._paces[next(iter(self._paces))]
        if is_complete and not self._file.is_sealed:
            try:
                self._file.save(_Paces(releases=self._paces))
            except OSError as error:  # It is not needed before the next update.
                log.warning("the pace of releases cannot be stored: %s", error)
