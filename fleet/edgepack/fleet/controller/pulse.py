"""Whether the controller's thread still goes round; one that hangs keeps others from nothing."""

import time
from collections.abc import Callable

STUCK_S = 60.0
"""No turn takes so long, short of a rollout to a million devices that is being started."""


class Pulse:
    """Felt by the threads that hold a lease, or a share of what devices say, for the controller.

    Args:
        clock: Monotonic clock, seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beaten_at = clock()

    def beat(self) -> None:
        """Says that the controller goes on, also while it waits for its database."""
        self._beaten_at = self._clock()

    @property
    def is_there(self) -> bool:
        """Whether it went on lately."""
        return self._clock() - self._beaten_at < STUCK_S
