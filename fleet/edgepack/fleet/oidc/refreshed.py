"""Values from an external party: requested by a single thread, and never while holding a lock.

A failure is kept, too. Until the next request to the party, every caller gets the failure at once.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from edgepack.errors import FleetError
from edgepack.fleet.oidc.fetching import TIMEOUT_S, ProviderAwayError

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
MAX_WAITERS = 2
"""Threads that wait while another one asks; more are told to try again."""


class Backoff:
    """The pause after failures, doubled with each.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failure: FleetError | None = None
        self._pause_s, self._next_at = FIRST_PAUSE_S, 0.0

    def check(self) -> None:
        """Fail while the pause lasts.

        Raises:
            ProviderAwayError: The last failure, and when the party is asked again.
        """
        left_s = self._next_at - self._clock()
        if self._failure is not None and 0 < left_s <= LONGEST_PAUSE_S:
            raise ProviderAwayError(
                f"{self._failure.problem}; it is asked again in {left_s:.0f} s",
                found_in=self._failure.found_in,
                remedy=self._failure.remedy,
            )

    def note(self, failure: FleetError | None) -> None:
        """Begin a pause after a failure; end the pause after a success."""
        if failure is None:
            self._pause_s = FIRST_PAUSE_S
        else:
            self._next_at = self._clock() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self._failure = failure


class Refreshed(Generic[T]):
    """A value that is requested again when too old.

    Args:
        ask: Asks the party; may take long.
        clock: Seconds.
    """

    def __init__(self, ask: Callable[[], T], clock: Callable[[], float]) -> None:
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._value: tuple[float, T] | None = None
        self._backoff = Backoff(clock)
        self._flight: threading.Event | None = None
        self._waiters = 0

    def get(self, most_age_s: float) -> tuple[T, bool]:
        """Return the value, and whether the value was requested just now.

        Args:
            most_age_s: An older value is asked for again.

        Raises:
            FleetError: The party gave none, just now or a moment ago.
        """
        with self._lock:
            if self._value is not None and 0 <= self._clock() - self._value[0] < most_age_s:
                return self._value[1], False
            self._backoff.check()
            flight = self._flight
            if flight is None:
                flight = self._flight = threading.Event()
                is_first = True
            elif self._waiters >= MAX_WAITERS:
                raise ProviderAwayError(
                    "the provider is being asked, and others wait for it", remedy="try again"
                )
            else:
                is_first = False
                self._waiters += 1
        if is_first:
            return self._fly(flight), True
        flight.wait(2 * TIMEOUT_S)
        with self._lock:
            self._waiters -= 1
            self._backoff.check()
            if self._value is None or flight is self._flight:
                raise ProviderAwayError("the provider gives no answer", remedy="try again")
            return self._value[1], True

    def _fly(self, flight: threading.Event) -> T:
        failure: FleetError | None = FleetError("the provider could not be asked")
        try:
            value = self._ask()
            failure = None
        except FleetError as error:
            failure = error
            raise
        finally:
            with self._lock:
                self._flight = None
                self._backoff.note(failure)
                if failure is None:
                    self._value = (self._clock(), value)
            flight.set()
        return value
