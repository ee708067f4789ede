"""Counts of the release and variant that serve, since they serve or of the last minutes."""

from edgepack.agent.telemetry.outcomes import OutcomeWatch
from edgepack.agent.telemetry.pace import Interval, Pace
from edgepack.agent.watch.observed import Bad, Observed
from edgepack.agent.watch.slowness import SHORT_INTERVALS, SHORTER
from edgepack.wire.messages import Telemetry


class Ledger:
    """Adds up the reports on a variant; a ledger is made anew for another variant.

    Args:
        digest, variant: The variant that serves.
        interval_s: Length of an interval for comparisons of latencies, seconds.
    """

    def __init__(self, digest: str, variant: str, interval_s: float) -> None:
        self.key = (digest, variant)
        self._short_s = interval_s / SHORTER
        self._outcomes = OutcomeWatch()
        self._short = Pace()

    def add(self, window: Telemetry, now: float) -> None:
        """Add a report; reports on other variants are ignored.

        Args:
            window: New report.
            now: Monotonic clock, seconds.
        """
        if (window.digest, window.variant) == self.key:
            self._outcomes.add(window, now)
            self._short = self._short.plus(window, self._short_s)

    @property
    def recent(self) -> tuple[Interval, ...]:
        """The last short intervals."""
        return self._short.intervals[-SHORT_INTERVALS:]

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
            recent=self.recent,
        )
