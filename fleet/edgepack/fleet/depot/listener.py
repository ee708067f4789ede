"""State of a device that lacks chunks of a file."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgepack.fleet.depot.window import Window

TICK_S = 1e-7
"""Two chunks are not sent at the same moment: which was sent first tells what was lost."""
MOST_CODED = 4
"""So often a chunk goes out coded to a device, and then as it is: a broker keeps coded messages
from that device, or what it has of the file is damaged. A link hardly loses one so often."""

Flags = NDArray[np.bool_]
Times = NDArray[np.float64]


class Listener:
    """Listener: a device and a file.

    A sent chunk is in flight until the device received a chunk that was sent later, or reports
    that transmission has stopped: then the chunk was lost. So a need that waited for long, or that
    speaks of a queue that a slow device has not emptied yet, asks for nothing twice.

    Args:
        device: Its id.
        chunk_count: Chunks of the file.
        since: Begin of listening, monotonic clock, seconds: nothing sent earlier is in flight.

    Attributes:
        takes_coded: Whether the device accepts coded messages.
        heard_at: Time of the last message, monotonic clock, seconds.
        known_until: Everything sent up to this time was received or lost.
        loss: Lost share of sent data, 0..1, from the last report.
        own: Its own topic.
        bytes_per_s: The device's rate limit; 0 for none.
        free_at: Time at which the rate limit allows the next send.
    """

    def __init__(self, device: str, chunk_count: int, since: float = 0.0) -> None:
        self.device = device
        self._count = chunk_count
        self._missing = np.packbits(np.ones(chunk_count, bool), bitorder="little")
        self._own_sent: dict[int, tuple[float, int]] = {}
        self._coded: Counter[int] = Counter()
        self.takes_coded = False
        self._last_at = 0.0
        self.heard_at, self.known_until = 0.0, since
        self.loss = 0.0
        self.own = Window()
        self.bytes_per_s = 0
        self.free_at = 0.0

    def hear(
        self,
        missing: bytes,
        sent_at: Times,
        said_at: float,
        until: float | None = None,
        latest: tuple[int, Sequence[float]] | None = None,
    ) -> None:
        """Note the device's need.

        Args:
            missing: Bitmap of the missing chunks, least bit first.
            sent_at: When each chunk was broadcast last; 0 is never.
            said_at: When that came, monotonic clock, seconds.
            until: Time up to which sent chunks are no longer in flight; None while chunks arrive.
            latest: The chunk received last, if named by the device, and all its broadcast times.
        """
        packed = np.frombuffer(missing, np.uint8)
        now_missing = _unpack(packed, self._count)
        last_sent = self._last_sent(sent_at)
        came = _unpack(self._missing, self._count) & ~now_missing
        told = 0.0
        if latest is not None:
            told = self._came_at(*latest)
        elif until is None:
            told = float(last_sent[came].max(initial=0.0))
        until = min(said_at, max(told, until or 0.0))
        if until > self.known_until:
            spoken_of = (last_sent > self.known_until) & (last_sent <= until)
            sent, lost = int(spoken_of.sum()), int((spoken_of & now_missing).sum())
            self.loss = lost / sent if sent else 0.0
            self.known_until = until
        self._missing = packed
        self.heard_at = said_at
        own = {
            index: (at, size)
            for index, (at, size) in self._own_sent.items()
            if at > self.known_until and now_missing[index]
        }
        self._own_sent = own
        self._coded = Counter({i: times for i, times in self._coded.items() if now_missing[i]})
        on_its_way = sum(size for _, size in own.values())
        self.own.acknowledge(self.own.sent_bytes - on_its_way, (self.loss,))

    def plan_key(self, times: Sequence[float]) -> Hashable:
        """Return a key shared by devices that need the same chunks, sent the same way.

        Args:
            times: Times of the last broadcast of each chunk, ascending.
        """
        if self._own_sent or self._coded:
            return self.device
        known = bisect_right(times, self.known_until)
        return self._missing.tobytes(), known, self.takes_coded, self.bytes_per_s > 0

    def chunks_to_send(self, sent_at: Times) -> Flags:
        """Return flags of the chunks that the device lacks and that are not in flight."""
        missing = _unpack(self._missing, self._count)
        return missing & (self._last_sent(sent_at) <= self.known_until)

    def lacking(self, start: int, end: int) -> Flags:
        """Return flags of the missing chunks, as last reported, from `start` (8 n) to `end`."""
        return _unpack(self._missing[start // 8 :], end - start)

    def without_code(self, due: Flags) -> Flags:
        """Return flags of the chunks to send uncoded: all, or chunks that failed coded."""
        if not self.takes_coded:
            return due
        in_vain = np.zeros_like(due)
        in_vain[[index for index, times in self._coded.items() if times >= MOST_CODED]] = True
        return due & in_vain

    def note_coded(self, index: int, at: float) -> None:
        """Record a coded message in which this chunk is the only missing chunk."""
        self.note_sent(index, at, 0)
        self._coded[index] += 1

    def note_sent(self, index: int, at: float, size_bytes: int) -> None:
        """Note a chunk sent by its own topic, later than all earlier chunks."""
        at = self._last_at = max(at, self._last_at + TICK_S)
        self._own_sent[index] = (at, size_bytes)
        self.own.sent_bytes += size_bytes
        if self.bytes_per_s:
            self.free_at = max(at, self.free_at) + size_bytes / self.bytes_per_s

    def _came_at(self, index: int, broadcast_at: Sequence[float]) -> float:
        """Return the send time of the last received chunk; the earliest possible time of several.

        The last broadcast may still be in flight, with everything sent between the two.
        """
        own_at, _ = self._own_sent.get(index, (0.0, 0))
        times = [at for at in (*broadcast_at, own_at) if at > self.known_until]
        return min(times, default=0.0)

    def _last_sent(self, sent_at: Times) -> Times:
        if not self._own_sent:
            return sent_at
        both = sent_at.copy()
        for index, (at, _) in self._own_sent.items():
            both[index] = max(both[index], at)
        return both


def _unpack(packed: NDArray[np.uint8], count: int) -> Flags:
    return np.unpackbits(packed, count=count, bitorder="little").view(bool)
