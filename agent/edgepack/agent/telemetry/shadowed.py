"""Results of shadow inferences: how often two releases gave the same answer."""

import threading
from collections.abc import Mapping

import msgspec

from edgepack.errors import TransferError

MAX_REASON = 500
_MAX_COUNT = 2**53


class Shadowed(msgspec.Struct, frozen=True, kw_only=True):
    """Shadow inferences of a release: those that the other release computed, too.

    Attributes:
        count: Compared inferences.
        agreed: Compared inferences in which both releases gave the same answer.
        dropped: Inferences skipped during a shadow inference, or too soon after.
        spaced: Compared inferences that were far enough apart to count as independent.
        spaced_agreed: Spaced inferences in which both releases gave the same answer.
        spaced_failed: Spaced inferences that failed with the newer release in the shadow.
        spaced_slow: Spaced inferences that took too long with the newer release in the shadow.
        because: Reason for missing or few shadow inferences; "" without a reason.
        sequence: Order for which the release ran last; the reason is about this order.
    """

    count: int = 0
    agreed: int = 0
    dropped: int = 0
    spaced: int = 0
    spaced_agreed: int = 0
    spaced_failed: int = 0
    spaced_slow: int = 0
    because: str = ""
    sequence: int = 0

    def plus(self, other: "Shadowed", sign: int = 1) -> "Shadowed":
        """Return the sum of both, or the difference with `sign` -1."""
        counts = {name: getattr(self, name) + sign * getattr(other, name) for name in COUNTS}
        newest = max(self.sequence, other.sequence)
        reasons = (one.because for one in (self, other) if one.sequence == newest)
        return Shadowed(**counts, because=next(filter(None, reasons), ""), sequence=newest)

    def of_order(self, sequence: int) -> "Shadowed":
        """Return the counts without the reason of another order of the same release."""
        return self if self.sequence == sequence else msgspec.structs.replace(self, because="")

    @property
    def is_consistent(self) -> bool:
        """True if no count contradicts another count."""
        parts = (self.spaced_agreed, self.spaced_failed, self.spaced_slow)
        return (
            all(0 <= getattr(self, name) <= _MAX_COUNT for name in (*COUNTS, "sequence"))
            and max(self.agreed, self.spaced) <= self.count
            and max(parts) <= self.spaced
            and self.spaced_agreed <= self.agreed
        )


COUNTS = tuple(
    field.name
    for field in msgspec.structs.fields(Shadowed)
    if field.name not in ("because", "sequence")
)


class ShadowRecorder:
    """Counts shadow inferences of a release in this process, in any thread."""

    def __init__(self) -> None:
        self._told = Shadowed()
        self._lock = threading.Lock()

    def begin(self, sequence: int) -> None:
        """Forget the reason of an earlier order: the release runs again.

        Args:
            sequence: Number of the order.
        """
        with self._lock:
            self._told = msgspec.structs.replace(self._told, because="", sequence=sequence)

    def add(self, *, agreed: bool, is_spaced: bool, failed: bool, is_slow: bool) -> None:
        """Count a compared inference.

        Args:
            agreed: Whether both releases gave the same answer.
            is_spaced: Whether the inference was far enough from the last independent inference.
            failed, is_slow: Whether the newer release in the shadow failed, or took too long.
        """
        self._plus(
            Shadowed(
                count=1,
                agreed=int(agreed),
                spaced=int(is_spaced),
                spaced_agreed=int(is_spaced and agreed),
                spaced_failed=int(is_spaced and failed),
                spaced_slow=int(is_spaced and is_slow),
            )
        )

    def drop(self) -> None:
        """Count a skipped inference."""
        self._plus(Shadowed(dropped=1))

    def end(self, because: str) -> None:
        """State why shadow inferences are missing."""
        self._plus(Shadowed(because=because[:MAX_REASON], sequence=self._told.sequence))

    def snapshot(self) -> Shadowed:
        """Return all that was counted."""
        return self._told

    def _plus(self, other: Shadowed) -> None:
        with self._lock:
            self._told = self._told.plus(other)


def add_up(*told: Mapping[str, Shadowed]) -> dict[str, Shadowed]:
    """Return the sums by digest of the release; of reasons the first of the newest order."""
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
    if not told.is_consistent or len(told.because) > MAX_REASON:
        raise TransferError("malformed spool file: shadow inferences are off", found_in=found_in)


def shadowed_since(earlier: Shadowed, now: Shadowed) -> Shadowed:
    """Return the counts since an earlier snapshot.

    Raises:
        TransferError: Counts went down.
    """
    fresh = now.plus(earlier, -1)
    if not fresh.is_consistent:
        raise TransferError("its counts of shadow inferences went down")
    return fresh
