"""Values of a served model, counted in the bins of its bundle's reference.

An inference a second is looked at, and a few thousand values of each tensor. The thread that runs
it copies them; they are counted when what inferences took is written.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.bundle.distributions import Values, count_values, thin
from edgepack.bundle.metadata import MAX_DISTRIBUTIONS, MAX_EDGES, Distribution
from edgepack.errors import TransferError

SAMPLE_S = 1.0
"""Seconds between two inferences that are looked at, at least."""

_MAX_WAITING = 32
_MAX_COUNT = 2**53


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one tensor.

    Attributes:
        tensor: Name of the input or output.
        shares: Expected shares, by bin.
        counts: Values by bin.
        inferences: Of how many inferences.
    """

    tensor: str
    shares: tuple[float, ...]
    counts: tuple[int, ...]
    inferences: int

    def plus(self, other: "Seen", sign: int = 1) -> "Seen":
        """Return the sum of both, or the difference with `sign` -1."""
        return msgspec.structs.replace(
            self,
            counts=tuple(a + sign * b for a, b in zip(self.counts, other.counts, strict=True)),
            inferences=self.inferences + sign * other.inferences,
        )


class ValueRecorder:
    """Counts values of one model in this process; any thread may offer some."""

    def __init__(self) -> None:
        self._reference: tuple[Distribution, ...] = ()
        self._counts: dict[str, npt.NDArray[np.int64]] = {}
        self._inferences: dict[str, int] = {}
        self._waiting: deque[dict[str, Values]] = deque(maxlen=_MAX_WAITING)
        self._next_at = 0.0
        self._lock = threading.Lock()

    def expect(self, reference: Iterable[Distribution]) -> None:
        """State what to count; without it nothing is."""
        self._reference = tuple(reference)

    def offer(self, feeds: Mapping[str, Values], outputs: Mapping[str, Values]) -> None:
        """Look at an inference, if one is due."""
        if not self._reference or time.monotonic() < self._next_at:
            return
        with self._lock:
            if time.monotonic() < self._next_at:
                return
            self._next_at = time.monotonic() + SAMPLE_S
        taken = {}
        for each in self._reference:
            tensor = feeds.get(each.tensor, outputs.get(each.tensor))
            if isinstance(tensor, np.ndarray) and tensor.dtype.kind in "biuf":
                taken[each.tensor] = thin(tensor)
        self._waiting.append(taken)

    def snapshot(self) -> tuple[Seen, ...]:
        """Return all that was counted."""
        while self._waiting:
            taken = self._waiting.popleft()
            for each in self._reference:
                if (values := taken.get(each.tensor)) is not None and values.size:
                    counts = count_values(each.edges, values)
                    self._counts[each.tensor] = self._counts.get(each.tensor, 0) + counts
                    self._inferences[each.tensor] = self._inferences.get(each.tensor, 0) + 1
        return tuple(
            Seen(
                tensor=each.tensor,
                shares=each.shares,
                counts=tuple(self._counts[each.tensor].tolist()),
                inferences=self._inferences[each.tensor],
            )
            for each in self._reference
            if each.tensor in self._counts
        )


def check_seen(seen: tuple[Seen, ...], *, found_in: str) -> None:
    """Judge what a process says; any process of the device may have written it.

    Raises:
        TransferError: There is too much of it, or numbers contradict each other.
    """
    fits = len(seen) <= MAX_DISTRIBUTIONS and all(
        len(one.shares) == len(one.counts) <= MAX_EDGES + 2
        and all(0 <= share <= 1 for share in one.shares)
        and all(0 <= count <= _MAX_COUNT for count in (one.inferences, *one.counts))
        for one in seen
    )
    if not fits:
        raise TransferError("malformed spool file: counts of values are off", found_in=found_in)


def seen_since(earlier: tuple[Seen, ...], now: tuple[Seen, ...]) -> tuple[Seen, ...]:
    """Return the counts since an earlier snapshot.

    Raises:
        TransferError: Counts went down.
    """
    known = {(one.tensor, one.shares): one for one in earlier}
    fresh = tuple(
        one.plus(before, -1) if (before := known.get((one.tensor, one.shares))) else one
        for one in now
    )
    if any(min((one.inferences, *one.counts)) < 0 for one in fresh):
        raise TransferError("its counts of values went down")
    return fresh
