"""Another client that uses this device's identity: detection, and delays between attempts.

A broker accepts a single client under an id and ends the connection of the other. Two clients that
displace each other every second would both be useless, so each waits longer every time.
"""

import random

from edgepack.text import counted

DELAY_S = (30, 600)
"""The first and the longest wait."""

TAKEN_OVER = "Session taken over"
"""Reason 0x8E of MQTT 5; not every broker gives it."""
SHORT_S = 5.0
SHORT_IN_A_ROW = 3
"""So many connections that lasted no longer are another sign."""


class TakeoverCounter:
    """Counts how often the connection was taken away.

    Args:
        device: Device id.
        rng: Randomness for the delays.
    """

    def __init__(self, device: str, rng: random.Random) -> None:
        self._device = device
        self._rng = rng
        self._taken = self._short = 0
        self._is_sure = False
        self._reason, self._is_violation = "", False

    def note_loss(self, reason: str, lasted_s: float, *, is_violation: bool = False) -> int | None:
        """Count a lost connection, and return the delay before the next attempt.

        Args:
            reason: Reason given by the broker.
            lasted_s: Duration of the connection.
            is_violation: Whether the broker violated a protocol, which another client does not
                cause.

        Returns:
            Seconds to wait before the next attempt; None to try again soon.
        """
        first_s, longest_s = DELAY_S
        self._calm_down(lasted_s)
        self._short = self._short + 1 if lasted_s < SHORT_S else 0
        if reason != TAKEN_OVER and self._short < SHORT_IN_A_ROW:
            return None
        self._taken += 1
        self._reason, self._is_violation = reason, is_violation
        self._is_sure = self._is_sure or reason == TAKEN_OVER
        delay_s = min(longest_s, first_s << min(self._taken - 1, 10))
        return round(delay_s * self._rng.uniform(0.8, 1.2))

    def trouble(self, connected_s: float) -> str:
        """Return the problem that needs a person, as a sentence; "" without another client.

        Args:
            connected_s: Seconds since the device connected; 0 without a connection.
        """
        self._calm_down(connected_s)
        if not self._taken:
            return ""
        remedy = "stop the other agent, or enrol this device under a name of its own"
        if self._is_sure:
            return (
                f"another client uses this identity, '{self._device}': the broker ended the "
                f"connection for it {counted(self._taken, 'time')}; {remedy}"
            )
        if self._is_violation:
            return (
                f"connections to the broker end within {SHORT_S:.0f} s: {self._reason}; "
                "ask who runs the broker, or a proxy before it"
            )
        return (
            f"another client seems to use this identity, '{self._device}': connections end within "
            f"{SHORT_S:.0f} s (at last: {self._reason}); {remedy}; if there is no other, ask who "
            "runs the broker, or a proxy before it"
        )

    def _calm_down(self, connected_s: float) -> None:
        if connected_s > 2 * DELAY_S[1]:
            self._taken, self._is_sure = 0, False
