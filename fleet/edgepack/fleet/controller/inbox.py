"""Where messages wait for the controller: bounded, a share for each device, and nobody waits."""

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from edgepack.fleet.controller.quotas import Quotas
from edgepack.wire import topics
from edgepack.wire.router import Router

log = logging.getLogger(__name__)

INBOX_LENGTH = 20_000
BATCH_LENGTH = 500


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it came.

    Attributes:
        device: Who said it.
        kind: What it is to be.
    """

    device: str
    kind: topics.UpKind
    payload: bytes


class Inbox:
    """Takes what comes in from any thread without ever waiting.

    Args:
        tenant: Whose devices.
        clock: Monotonic clock, seconds.

    Attributes:
        counters: Messages by what became of them.
        quotas: What each device may say, and what was dropped of it.
    """

    def __init__(self, tenant: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._queue: queue.Queue[Incoming | None] = queue.Queue(INBOX_LENGTH)
        self._router: Router[topics.UpKind] = Router(
            {topics.up(tenant, topics.DEVICE, kind): kind for kind in topics.UP_KINDS}
        )
        self._clock = clock
        self.counters: Counter[str] = Counter()
        self.quotas = Quotas()
        self.reconnected = threading.Event()

    def receive(self, topic: str, payload: bytes) -> None:
        """Keeps a message; one too many is dropped (devices repeat what matters)."""
        if (found := self._router.find(topic)) is None:
            if not self.counters["unknown_topic"]:
                log.warning("topic=%s dropped because=no topic that devices write", topic[:200])
            self.counters["unknown_topic"] += 1
            return
        kind, device = found
        if not self.quotas.admits(device, kind, self._clock()):
            self.counters["over_quota"] += 1
            return
        try:
            self._queue.put_nowait(Incoming(device=device, kind=kind, payload=payload))
        except queue.Full:
            self.counters["overflow"] += 1

    def connected(self) -> None:
        """Notes that the broker is there (again) and may have forgotten what was retained."""
        self.reconnected.set()
        self.wake()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be taken."""
        return self._queue.empty()

    def wake(self) -> None:
        """Makes the controller look at once."""
        if self._queue.empty():
            self._queue.put(None)

    def take(self, timeout_s: float) -> list[Incoming]:
        """The next messages, in order; waits for the first one at most `timeout_s`."""
        batch: list[Incoming | None] = []
        try:
            batch.append(self._queue.get(timeout=timeout_s))
            while len(batch) < BATCH_LENGTH:
                batch.append(self._queue.get_nowait())
        except queue.Empty:
            pass
        return [message for message in batch if message is not None]
