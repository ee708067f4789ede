"""Window of data in flight to devices: grows with received data, shrinks with lost data.

A broker stores undelivered data, so data in flight takes the broker's memory; the data in flight
that keeps a device busy is its rate times its delay of reports. So no timer is needed: reports of
progress let the depot send on.
"""

from collections.abc import Sequence

LEAST_BYTES = 8 * 64 * 1024
FIRST_BYTES = 4_000_000
SHARED_BYTES = 40_000_000
"""On its way to all devices together, beside `OWN_BYTES` for each: what brokers hold for it."""
OWN_BYTES = 700_000
TOLERATED_LOSS = 0.1
"""A broker that drops a tenth was given a tenth too much; links that lose some are no reason to
slow down."""
SLOWEST_STEP = 0.5


class Window:
    """Data in flight on a topic, with its limit; reads no clock.

    Attributes:
        size_bytes: How much may be.
        sent_bytes: All that was ever sent.
        acked_bytes: Bytes known to be received or lost.
        full_since: Time of the last send, monotonic clock, seconds; None while there is space.
    """

    def __init__(self) -> None:
        self.size_bytes = float(FIRST_BYTES)
        self.sent_bytes = 0
        self.acked_bytes = 0
        self.full_since: float | None = None
        self._shrunk_at_bytes = 0

    def room(self, shares: int, now: float) -> bool:
        """Return True if something may be sent.

        Args:
            shares: To how many devices something is on its way, each counted once for each file.
            now: Monotonic clock, seconds.
        """
        most = SHARED_BYTES / max(1, shares) + OWN_BYTES
        is_open = self.sent_bytes - self.acked_bytes < min(self.size_bytes, most)
        if is_open:
            self.full_since = None
        elif self.full_since is None:
            self.full_since = now
        return is_open

    def acknowledge(self, acked_bytes: int, losses: Sequence[float]) -> None:
        """Note how far devices are.

        Args:
            acked_bytes: Received or lost bytes, of all bytes ever sent.
            losses: The lost share, 0..1, for each device; the median counts.
        """
        came = acked_bytes - self.acked_bytes
        if came <= 0:
            return
        self.acked_bytes = acked_bytes
        self.full_since = None
        loss = sorted(losses)[len(losses) // 2] if losses else 0.0
        if loss <= TOLERATED_LOSS:
            self.size_bytes = min(SHARED_BYTES + OWN_BYTES, self.size_bytes + came)
        elif acked_bytes > self._shrunk_at_bytes:  # once for what was sent at the larger size
            self._shrunk_at_bytes = self.sent_bytes
            self.size_bytes = max(LEAST_BYTES, self.size_bytes * max(SLOWEST_STEP, 1 - loss))

    def give_up(self) -> None:
        """Count the data in flight as lost."""
        self.acked_bytes = self.sent_bytes
        self.full_since = None
        self.size_bytes = float(FIRST_BYTES)
