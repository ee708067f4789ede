"""When to say what is missing, and how to say it in messages that a broker lets pass."""

import random
from collections.abc import Iterable

from edgepack.agent.transfer.chunk_status import MissingChunks
from edgepack.wire.messages import MAX_MESSAGE_BYTES, Need, NeedFile
from edgepack.wire.need_bitmap import pack_missing

FIRST_JITTER_S = 0.1
"""A wave is offered a bundle at once; a breath lets the depot see that many lack the same."""
QUIET_S = 1.0
"""A pass is over when no chunk came for so long."""
MAX_QUIET_S = 60.0

_FRAME_BYTES = 512
_FILE_BYTES = 160
_BUDGET_BYTES = MAX_MESSAGE_BYTES - 1024


class NeedScheduler:
    """Decides when the device publishes its need; reads no clock, sleeps never.

    It asks at the start, after a pass has ended with something missing, and after the broker came
    back. Without an answer it asks ever more seldom. Each wait has jitter, so that the devices of
    a wave do not speak at the same moment.

    Args:
        now: Monotonic clock, seconds.
        rng: Randomness for the jitter.
    """

    def __init__(self, now: float, rng: random.Random) -> None:
        self._rng = rng
        self._quiet_s = QUIET_S
        self._due_at = now + rng.uniform(0, FIRST_JITTER_S)
        self._has_asked = False
        self.round = 0
        self.received = 0

    @property
    def due_at(self) -> float:
        """When to ask next, monotonic clock."""
        return self._due_at

    def note_chunk(self, now: float, *, is_new: bool) -> None:
        """A chunk of a wanted file came: somebody sends, so wait until that pass is over."""
        self.received += is_new
        self._quiet_s = QUIET_S
        if self._has_asked:
            self._due_at = now + self._quiet_s * self._rng.uniform(1.0, 1.5)

    def note_connected(self, now: float) -> None:
        """The broker is back: what was asked or sent before is lost."""
        self._quiet_s = QUIET_S
        self._has_asked = False
        self._due_at = now + self._rng.uniform(0, FIRST_JITTER_S)

    def ask(self, digest: str, missing: tuple[MissingChunks, ...], now: float) -> tuple[Need, ...]:
        """The messages to publish now; the next time is set.

        What did not come counts as lost only when something came: a depot that is away loses
        nothing, and must not be told to slow down.
        """
        lost = sum(len(m.chunks) for m in missing) if self._has_asked and self.received else 0
        received = self.received
        self.round += 1
        self.received = 0
        if self._has_asked and not received:
            self._quiet_s = min(MAX_QUIET_S, 2 * self._quiet_s)
        self._has_asked = True
        self._due_at = now + self._quiet_s * self._rng.uniform(1.0, 1.5)
        messages = []
        for number, files in enumerate(_batches(missing)):
            first = number == 0
            messages.append(
                Need(
                    digest=digest,
                    files=files,
                    round=self.round,
                    received=received if first else 0,
                    lost=lost if first else 0,
                )
            )
        return tuple(messages)


def _batches(missing: Iterable[MissingChunks]) -> Iterable[tuple[NeedFile, ...]]:
    """Files so many to a message that none is too long; at least one, maybe empty, message.

    A bitmap over a million chunks (64 GB) does not fit at worst: no file is that long.
    """
    batch: list[NeedFile] = []
    used = _FRAME_BYTES
    for one in missing:
        packed = pack_missing(one.sha256, one.chunks, one.chunk_count)
        size = _FILE_BYTES + (len(packed.missing) + 2) // 3 * 4
        if batch and used + size > _BUDGET_BYTES:
            yield tuple(batch)
            batch, used = [], _FRAME_BYTES
        batch.append(packed)
        used += size
    yield tuple(batch)
