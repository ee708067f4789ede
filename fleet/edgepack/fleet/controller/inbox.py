"""Where messages wait for the controller: a bounded queue that never makes anybody wait."""

import queue
import threading
from collections import Counter

import msgspec

INBOX_LENGTH = 20_000
BATCH_LENGTH = 500


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it came."""

    topic: str
    payload: bytes


class Inbox:
    """Takes what comes in from any thread without ever waiting.

    Attributes:
        counters: Messages by what became of them.
    """

    def __init__(self) -> None:
        self._queue: queue.Queue[Incoming | None] = queue.Queue(INBOX_LENGTH)
        self.counters: Counter[str] = Counter()
        self.reconnected = threading.Event()

    def receive(self, topic: str, payload: bytes) -> None:
        """Keeps a message; one too many is dropped (devices repeat what matters)."""
        try:
            self._queue.put_nowait(Incoming(topic=topic, payload=payload))
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
