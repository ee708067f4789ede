"""How fast the depot sends, from what devices say they received and lost."""

import msgspec

FIRST_BYTES_PER_S = 8e6
LEAST_BYTES_PER_S = 256e3
MOST_BYTES_PER_S = 200e6  # brokers carried 200..320 MB/s in our measurements
TOLERATED_LOSS = 0.01
SLOWER, FASTER = 0.6, 1.3


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """A sending rate and what was said of it since it was last changed.

    Attributes:
        bytes_per_s: The rate.
        received: Chunks that devices said came.
        lost: Chunks that devices awaited in vain.
    """

    bytes_per_s: float = FIRST_BYTES_PER_S
    received: int = 0
    lost: int = 0

    def heard(self, received: int, lost: int) -> "Pace":
        """The pace after one device's report."""
        return msgspec.structs.replace(
            self, received=self.received + max(0, received), lost=self.lost + max(0, lost)
        )

    def adjusted(self) -> "Pace":
        """The pace of the next pass: slower when chunks were lost, faster when none were."""
        total = self.received + self.lost
        if total == 0:
            return self
        factor = SLOWER if self.lost / total > TOLERATED_LOSS else FASTER
        rate = min(MOST_BYTES_PER_S, max(LEAST_BYTES_PER_S, self.bytes_per_s * factor))
        return Pace(bytes_per_s=rate)


def wait_before(sent_bytes: int, elapsed_s: float, pace: Pace) -> float:
    """Seconds to wait before the next chunk so that the rate of this pass holds."""
    return max(0.0, sent_bytes / pace.bytes_per_s - elapsed_s)
