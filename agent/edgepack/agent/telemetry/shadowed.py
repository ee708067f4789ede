"""Results of shadow inferences: how often the previous release gave the same output."""

import threading
from collections.abc import Mapping

import msgspec

from edgepack.errors import TransferError

MAX_REASON = 500
_MAX_COUNT = 2**53


class Shadowed(msgspec.Struct, frozen=True, kw_only=True):
    """Shadow inferences of a release.

    Attributes:
        count: Compared inferences.
        agreed: Shadow inferences in which both releases agreed.
        dropped: Inferences skipped during a shadow inference, or too soon after.
        spaced: Compared inferences that were far enough apart to count as independent.
        spaced_agreed: Spaced inferences in which both releases gave the same answer.
        because: Reason for missing or few shadow inferences; "" without a reason.
    """

    count: int = 0
    agreed: int = 0
    dropped: int = 0
    spaced: int = 0
    spaced_agreed: int = 0
    because: str = ""

    def plus(self, other: "Shadowed", sign: int = 1) -> "Shadowed":
        """Return the sum of both, or the difference with `sign` -1."""
        return Shadowed(
            count=self.count + sign * other.count,
            agreed=self.agreed + sign * other.agreed,
            dropped=self.dropped + sign * other.dropped,
            spaced=self.spaced + sign * other.spaced,
            spaced_agreed=self.spaced_agreed + sign * other.spaced_agreed,
            because=self.because or other.because,
        )


class ShadowRecorder:
    """Counts shadow inferences of a release in this process, in any thread."""

    def __init__(self) -> None:
        self._told = Shadowed()
        self._lock = threading.Lock()

    def add(self, *, agreed: bool, is_spaced: bool) -> None:
        """Count a compared inference.

        Args:
            agreed: Whether both releases gave the same answer.
            is_spaced: Whether the inference was far enough from the last independent inference.
        """
        self._plus(
            Shadowed(
                count=1,
                agreed=int(agreed),
                spaced=int(is_spaced),
                spaced_agreed=int(is_spaced and agreed),
            )
        )

    def drop(self) -> None:
        """Count a skipped inference."""
        self._plus(Shadowed(dropped=1))

    def end(self, because: str) -> None:
        """State why shadow inferences are missing."""
        self._plus(Shadowed(because=because[:MAX_REASON]))

    def snapshot(self) -> Shadowed:
        """Return all that was counted."""
        return self._told

    def _plus(self, other: Shadowed) -> None:
        with self._lock:
            self._told = self._told.plus(other)


def add_up(*told: Mapping[str, Shadowed]) -> dict[str, Shadowed]:
    """Return the sums by digest of the release; of several reasons the first."""
    whole: dict[str, Shadowed] = {}
    for one in told:
        for digest, counted in one.items():
            whole[digest] = whole.get(digest, Shadowed()).plus(counted)
    return whole


def check_shadowed(told: Shadowed, *, found_in: str) -> None:
    """Check a process's counts; any process of the device may have written the file.

    Raises:
        TransferError: Its numbers contradict each other, or its reason is too long.
    """
    counts = (told.count, told.agreed, told.dropped, told.spaced, told.spaced_agreed)
    fits = all(0 <= count <= _MAX_COUNT for count in counts)
    fits = fits and max(told.agreed, told.spaced) <= told.count
    fits = fits and told.spaced_agreed <= min(told.agreed, told.spaced)
    if not fits or len(told.because) > MAX_REASON:
        raise TransferError("malformed spool file: shadow inferences are off", found_in=found_in)


def shadowed_since(earlier: Shadowed, now: Shadowed) -> Shadowed:
    """Return the counts since an earlier snapshot.

    Raises:
        TransferError: Counts went down.
    """
    fresh = now.plus(earlier, -1)
    counts = (fresh.count, fresh.agreed, fresh.dropped, fresh.spaced, fresh.spaced_agreed)
    differences = (fresh.count - fresh.agreed, fresh.spaced - fresh.spaced_agreed)
    if min(*counts, *differences) < 0:
        raise TransferError("its counts of shadow inferences went down")
    return fresh
