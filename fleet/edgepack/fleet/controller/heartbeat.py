"""Heartbeat of the controller's thread, so that a hung controller gives up the lease."""

import time
from collections.abc import Callable

STUCK_S = 60.0
"""Longest time between two beats; only the start of a rollout to a million devices takes longer."""


class Heartbeat:
    """Time of the controller's last beat, for the threads that hold a lease or a subscription.

    Args:
        clock: Monotonic clock, seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beaten_at = clock()

    def beat(self) -> None:
        """Record that the controller runs; also called while waiting for the database."""
        self._beaten_at = self._clock()

    @property
    def is_beating(self) -> bool:
        """True if the last beat is recent."""
        return self._clock() - self._beaten_at < STUCK_S
