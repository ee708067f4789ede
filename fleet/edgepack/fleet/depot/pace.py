"""How fast the depot sends, from what devices say they received and lost."""

from statistics import median_high

import msgspec

FIRST_STREAM, LEAST_STREAM, MOST_STREAM = 8e6, 256e3, 200e6
FIRST_EGRESS, LEAST_EGRESS, MOST_EGRESS = 150e6, 10e6, 10e9
"""Bytes per second. Brokers carried 200 to 320 MB/s to all listeners together on two cores."""
TOLERATED_LOSS = 0.01
FASTER = 1.3
SLOWEST_STEP = 0.25


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Sending rates, and what was said of them since they were last changed.

    Attributes:
        stream_bytes_per_s: What one device can follow.
        egress_bytes_per_s: What the broker can send on to all devices together.
        losses: By device: 0..1, the share of what it awaited that it said did not come.
    """

    stream_bytes_per_s: float = FIRST_STREAM
    egress_bytes_per_s: float = FIRST_EGRESS
    losses: dict[str, float] = {}

    def heard(self, device: str, received: int, lost: int) -> "Pace":
        """The pace after one device's report; the newest one of each device counts."""
        if received + lost <= 0:
            return self
        losses = self.losses | {device: lost / (received + lost)}
        return msgspec.structs.replace(self, losses=losses)

    def adjusted(self) -> "Pace":
        """The pace of the next pass: slower by what was lost, faster when nothing was.

        The device in the middle decides: one that says it lost everything slows no other down.
        """
        if not self.losses:
            return self
        loss = median_high(self.losses.values())
        factor = max(SLOWEST_STEP, 1 - loss) if loss > TOLERATED_LOSS else FASTER
        stream, egress = self.stream_bytes_per_s * factor, self.egress_bytes_per_s * factor
        return Pace(
            stream_bytes_per_s=min(MOST_STREAM, max(LEAST_STREAM, stream)),
            egress_bytes_per_s=min(MOST_EGRESS, max(LEAST_EGRESS, egress)),
        )

    def bytes_per_s(self, listeners: int) -> float:
        """The rate of a pass that so many devices listen to."""
        shared = self.egress_bytes_per_s / max(1, listeners)
        return min(self.stream_bytes_per_s, max(LEAST_STREAM, shared))


def wait_before(sent_bytes: int, elapsed_s: float, bytes_per_s: float) -> float:
    """Seconds to wait before the next chunk so that the rate of this pass holds."""
    return max(0.0, sent_bytes / bytes_per_s - elapsed_s)
