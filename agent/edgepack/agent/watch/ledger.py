"""Counts of the release and variant that serve, since they serve or of the last minutes."""

from edgepack.agent.telemetry.outcomes import OutcomeWatch
from edgepack.agent.telemetry.pace import Interval, Pace
from edgepack.agent.watch.observed import Bad, Observed
from edgepack.agent.watch.slowness import SHORT_INTERVALS, SHORTER
from edgepack.wire.telemetry import Telemetry

MOST_BEFORE_S = 60.0
"""A report may begin so many seconds before the ledger: processes report every few seconds."""


class Ledger:
    """Adds up the reports on a variant; a ledger is made anew for another variant.

    Args:
        digest, variant: The variant that serves.
        interval_s: Length of an interval for comparisons of latencies, seconds.
        since: Begin of the ledger, monotonic clock, seconds: older reports are ignored.
    """

    def __init__(self, digest: str, variant: str, interval_s: float, *, since: float) -> None:
        self.key = (digest, variant)
        self._since = since
        self._short_s = interval_s / SHORTER
        self._outcomes = OutcomeWatch()
        self._short = Pace()
        self._fresh, self._fresh_since = Pace(), since

    def add(self, window: Telemetry, *, now: float, wall: float) -> None:
        """Add a report; reports on other variants, or on an earlier time, are ignored.

        Reports wait while nobody collects, for example during another model's update. So a report
        counts from the end of its window. A clock that was set back makes no report younger than
        now.

        Args:
            window: New report.
            now, wall: Monotonic clock, and seconds since the epoch.
        """
        ended = now - max(0.0, wall - window.window_start - window.window_s)
        began = now - max(0.0, wall - window.window_start)
        is_old = ended < self._since or began < self._since - MOST_BEFORE_S
        if (window.digest, window.variant) == self.key and not is_old:
            self._outcomes.add(window, ended)
            self._short = self._short.plus(window, self._short_s)
            if began >= self._fresh_since:
                self._fresh = self._fresh.plus(window, self._short_s)

    @property
    def recent(self) -> tuple[Interval, ...]:
        """The last short intervals."""
        return self._short.intervals[-SHORT_INTERVALS:]

    def begin_fresh(self, now: float) -> None:
        """Begin a new short interval now."""
        self._fresh, self._fresh_since = Pace(), now

    @property
    def fresh(self) -> Interval | None:
        """The first short interval since `begin_fresh`; None until it is complete."""
        return self._fresh.intervals[0] if self._fresh.intervals else None

    def observed(self, now: float) -> Observed:
        """Return the counts of the last minutes as measurements of a committed release."""
        digest, _ = self.key
        seen = self._outcomes.recent(digest, now)
        if seen is None:
            return Observed(is_soaking=False, recent=self.recent)
        return Observed(
            is_soaking=False,
            inferences=seen.inferences,
            failed=Bad(count=seen.failed, lasted_s=self._outcomes.lasted_s(digest, "failed")),
            not_finite=Bad(
                count=seen.not_finite, lasted_s=self._outcomes.lasted_s(digest, "not_finite")
            ),
            bad_inputs=Bad(
                count=seen.bad_inputs, lasted_s=self._outcomes.lasted_s(digest, "bad_inputs")
            ),
            bad_input=seen.bad_input,
            recent=self.recent,
        )
