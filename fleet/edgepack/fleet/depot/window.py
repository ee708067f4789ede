"""Window of data in flight to devices: grows with received data, shrinks with lost data.

A broker keeps what a device has not taken yet, so what is on its way is the broker's memory; and
what a device takes in a second times how late it says so is what must be on its way to keep it
busy. So nothing is timed: devices say how far they are, and that lets the depot send on.
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
    """Data in flight by one topic, with its limit; reads no clock.

    Attributes:
        size_bytes: How much may be.
        sent_bytes: All that was ever sent.
        acked_bytes: What of it came, or was lost, as far as is known.
        full_since: When the last of it was taken, monotonic clock, seconds; None while there is
            room.
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
            acked_bytes: What came or was lost, of all that was ever sent.
            losses: The share of it that was lost, 0..1, for each device; the one in the middle
                counts.
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
        """Count what is on its way as gone."""
        self.acked_bytes = self.sent_bytes
        self.full_since = None
        self.size_bytes = float(FIRST_BYTES)
