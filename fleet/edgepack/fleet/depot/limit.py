"""Limit on the depot's bytes per second, with the measured rate."""

from collections import deque

from edgepack.bandwidth import Bandwidth

AHEAD_S = 0.05
"""What was not sent for a moment may be made up for."""
CLOSED_S = 1.0
"""So long nobody looks whether the hours have come in which something may be sent."""
MEASURED_S = 5.0


class Limit:
    """Holds a rate, which the hours may change.

    Args:
        bandwidth: The rate.
    """

    def __init__(self, bandwidth: Bandwidth) -> None:
        self._bandwidth = bandwidth
        self._free_at = 0.0
        self._sent: deque[tuple[float, int]] = deque(maxlen=2000)

    def wait_s(self, now: float) -> float:
        """Return the seconds to wait before the next send, at most a second."""
        rate = self._bandwidth.now()
        if rate is None:
            return 0.0
        if rate <= 0:
            return CLOSED_S
        return min(CLOSED_S, max(0.0, self._free_at - now))

    def note_sent(self, size_bytes: int, now: float) -> None:
        """Note sent bytes."""
        self._sent.append((now, size_bytes))
        rate = self._bandwidth.now()
        if rate:
            self._free_at = max(self._free_at, now - AHEAD_S) + size_bytes / rate

    def measured_bytes_per_s(self, now: float) -> float:
        """Return the rate of sent bytes over the last `MEASURED_S`."""
        recent = [(at, size) for at, size in tuple(self._sent) if at > now - MEASURED_S]
        if not recent:
            return 0.0
        return sum(size for _, size in recent) / max(0.1, now - recent[0][0])
