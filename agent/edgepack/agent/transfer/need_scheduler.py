"""Scheduler of need messages: when to report missing chunks, within the broker's message size."""

import random
from collections.abc import Iterable, Mapping

import msgspec

from edgepack.agent.transfer.chunk_status import MissingChunks
from edgepack.bandwidth import UNLIMITED, Bandwidth
from edgepack.wire.messages import MAX_MESSAGE_BYTES
from edgepack.wire.need_bitmap import pack_missing
from edgepack.wire.orders import MAX_STEP
from edgepack.wire.transfers import Need, NeedFile

FIRST_JITTER_S = 0.1
"""A wave is offered a bundle at once; a breath lets the depot see that many lack the same."""
QUIET_S = 1.0
"""A pass is over when no chunk came for so long."""
MAX_QUIET_S = 60.0
TOLD_CHUNKS = (3, 6)
"""While chunks come, the device says how far it is after so many of them: the depot sends on by it.
That is less than what the depot sends at the very least before it waits."""
TOLD_S = ((50, 0.02), (250, 0.07), (MAX_STEP, 0.22))
"""And not sooner than so long after it did, up to so many rounds: soon at first, for the depot has
to find out what a device takes, then no more often than a fleet listens to one for long."""
TOLD_GROWTH = 0.5
"""But at once when so much came since, as a share of all that had come when it did: the depot sends
twice as much by each word, so it would wait for the next one while there is little on its way."""

_FRAME_BYTES = 512
_FILE_BYTES = 160
_BUDGET_BYTES = MAX_MESSAGE_BYTES - 1024


class NeedScheduler:
    """Decides when the device publishes its need; reads no clock, sleeps never.

    The scheduler publishes at the start, during reception, after an end with missing chunks, and
    after a reconnect of the broker. Without an answer the intervals grow. Each wait has jitter, so
    that the devices of a wave do not speak at the same moment.

    Args:
        now: Monotonic clock, seconds.
        rng: Randomness for the jitter.
        bandwidth: Limit of this device.
    """

    def __init__(self, now: float, rng: random.Random, bandwidth: Bandwidth = UNLIMITED) -> None:
        self._rng = rng
        self._bandwidth = bandwidth
        self._quiet_s = QUIET_S
        jitter = rng.uniform(0, 1)
        self._due_at = now + jitter * FIRST_JITTER_S
        self._tell_at, self._tell_after = now, _told_chunks(jitter)
        self._has_asked = self._has_heard = self._is_under_way = False
        self._first_at = self._last_at = now
        self._latest: dict[str, int] = {}
        self.round = 0
        self.received = self._came = self._had_come = 0

    @property
    def due_at(self) -> float:
        """Time of the next request, monotonic clock."""
        return self._due_at

    @property
    def limit(self) -> float | None:
        """Bytes a second that this device may be sent now; None means no limit, 0 nothing at
        all.
        """
        return self._bandwidth.now()

    @property
    def is_under_way(self) -> bool:
        """True if the next need only reports progress, while chunks arrive."""
        return self._is_under_way

    @property
    def flow_s(self) -> float:
        """Return the seconds from the first received chunk to the last."""
        return self._last_at - self._first_at

    def note_chunk(self, now: float, *, is_new: bool, place: tuple[str, int] | None = None) -> None:
        """Note a chunk of a wanted file: a sender is active, so delay the next request.

        Args:
            now: Monotonic clock, seconds.
            is_new: Whether the chunk was missing. A repeated chunk also shows the depot the
                device's progress: after a widespread loss, each device lacks little.
            place: File and index of the chunk, as in `NeedFile.latest`.
        """
        if not self._has_heard:
            self._first_at, self._has_heard = now, True
        self._last_at = now
        self.received += is_new
        self._came += 1
        if place is not None:
            self._latest[place[0]] = place[1]
        self._quiet_s = QUIET_S
        if not self._has_asked:
            return
        self._due_at = now + self._quiet_s * self._rng.uniform(1.0, 1.5)
        if self._came >= self._tell_after:
            has_grown = self._came >= TOLD_GROWTH * self._had_come
            self._due_at = now if has_grown else max(now, self._tell_at)
            self._is_under_way = True

    def note_connected(self, now: float) -> None:
        """Note a new connection to the broker: earlier requests are lost."""
        self._quiet_s = QUIET_S
        self._has_asked = self._is_under_way = False
        self._due_at = now + self._rng.uniform(0, FIRST_JITTER_S)

    def ask(self, digest: str, missing: tuple[MissingChunks, ...], now: float) -> tuple[Need, ...]:
        """Return the messages to publish now; the next time is set.

        Missing chunks count as lost only if other chunks came: a depot that is away loses nothing,
        and must not be ordered to slow down.
        """
        is_under_way, self._is_under_way = self._is_under_way, False
        awaited = self._has_asked and self.received and not is_under_way
        lost = sum(len(m.chunks) for m in missing) if awaited else 0
        received = self.received
        self.round += 1
        self._had_come += self._came
        self.received = self._came = 0
        if self._has_asked and not received:
            self._quiet_s = min(MAX_QUIET_S, 2 * self._quiet_s)
        self._has_asked = True
        jitter = self._rng.uniform(0, 1)
        self._due_at = now + self._quiet_s * (1 + jitter / 2)
        tell_s = next(seconds for up_to, seconds in TOLD_S if self.round <= up_to)
        self._tell_at = now + tell_s * (1 + jitter / 5)
        self._tell_after = _told_chunks(jitter)
        bytes_per_s = int(self.limit or 0)
        messages = []
        for number, files in enumerate(_batches(missing, self._latest)):
            first = number == 0
            messages.append(
                Need(
                    digest=digest,
                    files=files,
                    round=self.round,
                    received=received if first else 0,
                    lost=lost if first else 0,
                    under_way=is_under_way,
                    bytes_per_s=bytes_per_s,
                )
            )
        return tuple(messages)

    def complete(self, digest: str) -> Need:
        """Return the message that nothing is wanted any more, so that nobody waits for this
        device.
        """
        self.round += 1
        received, self.received = self.received, 0
        return Need(digest=digest, files=(), round=self.round, received=received)


def _told_chunks(jitter: float) -> int:
    least, most = TOLD_CHUNKS
    return least + round(jitter * (most - least))


def _batches(
    missing: Iterable[MissingChunks], latest: Mapping[str, int]
) -> Iterable[tuple[NeedFile, ...]]:
    """Return files in batches, so that no message is too long; at least a single batch, maybe
    empty.

    A bitmap over a million chunks (64 GB) does not fit at worst: no file is that long.
    """
    batch: list[NeedFile] = []
    used = _FRAME_BYTES
    for one in missing:
        packed = pack_missing(one.sha256, one.chunks, one.chunk_count)
        packed = msgspec.structs.replace(
            packed, latest=latest.get(one.sha256), takes_coded=one.takes_coded
        )
        size = _FILE_BYTES + (len(packed.missing) + 2) // 3 * 4
        if batch and used + size > _BUDGET_BYTES:
            yield tuple(batch)
            batch, used = [], _FRAME_BYTES
        batch.append(packed)
        used += size
    yield tuple(batch)
