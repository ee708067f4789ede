"""Bounded queue of messages for the controller, with a share for each device; senders never
wait.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

import msgspec

from edgepack.fleet.controller.quotas import Quotas
from edgepack.fleet.controller.totals import FleetTotals
from edgepack.wire import topics
from edgepack.wire.messages import MAX_MESSAGE_BYTES
from edgepack.wire.router import Router

log = logging.getLogger(__name__)

INBOX_BYTES = 64 * 1024 * 1024
"""Payloads that wait, at most: 50,000 and more of the usual ones."""
MAX_MESSAGE_OVERHEAD = 500
"""Bytes that a message takes beside its payload, about."""
BATCH_LENGTH = 1000


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """A message as received.

    Attributes:
        device: Id of the sender.
        kind: Kind of the message, by its topic.
        at: Receive time, monotonic clock, seconds.
        is_charged: Whether the message was charged to the device before its signature is verified.
    """

    device: str
    kind: topics.UpKind
    payload: bytes
    at: float = 0.0
    is_charged: bool = True


class Inbox:
    """Queue of incoming messages; accepts messages from any thread without waiting.

    Args:
        tenant: Tenant of the devices.
        clock: Monotonic clock, seconds.

    Attributes:
        counters: Messages by outcome.
        totals: Inferences that devices reported.
        quotas: Quota and dropped messages of each device.
        was_woken: Whether the controller was woken since the previous batch.
        take_need: Tries to handle a need at once: device, payload and receive time.
    """

    def __init__(self, tenant: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Incoming] = deque()
        self._waiting_bytes = 0
        self._is_woken = self.was_woken = False
        self._router: Router[topics.UpKind] = Router(
            {topics.up(tenant, topics.DEVICE, kind): kind for kind in topics.UP_KINDS}
        )
        self._clock = clock
        self.counters: Counter[str] = Counter()
        self.totals = FleetTotals(time.time())
        self.quotas = Quotas()
        self.reconnected = threading.Event()
        self.take_need: Callable[[str, bytes, float], bool] = lambda *_: False

    def receive(self, topic: str, payload: bytes) -> None:
        """Queue a message; drop the message if the queue is full (devices repeat important
        messages).
        """
        if (found := self._router.find(topic)) is None:
            if not self.counters["unknown_topic"]:
                log.warning("topic=%s dropped because=no topic that devices write", topic[:200])
            self.counters["unknown_topic"] += 1
            return
        kind, device = found
        now = self._clock()
        is_will = kind == "reported" and payload[:1] == b"{"
        is_charged = kind == "need" or is_will or not self.quotas.is_forged(device, now)
        if is_will:
            is_within = self.quotas.admits_will(device, now)
        elif is_charged:
            is_within = self.quotas.admits(device, kind, now)
        else:
            is_within = self.quotas.admits_unverified(device, kind, now)
        if not is_within:
            self.counters["over_quota"] += 1
            return
        if len(payload) > MAX_MESSAGE_BYTES:  # No agent says so much; a broker may let it pass.
            self.counters["too_long"] += 1
            self.quotas.note_dropped(device, f"{kind} too long", f"{len(payload)} bytes")
            return
        if kind == "need" and self.take_need(device, payload, now):
            self.counters[kind] += 1
            return
        size = len(payload) + MAX_MESSAGE_OVERHEAD
        with self._changed:
            if self._waiting_bytes + size > INBOX_BYTES:
                self.counters["overflow"] += 1
                return
            self._waiting.append(
                Incoming(device=device, kind=kind, payload=payload, at=now, is_charged=is_charged)
            )
            self._waiting_bytes += size
            if len(self._waiting) in (1, BATCH_LENGTH):  # whoever waits need not see each one
                self._changed.notify()

    def connected(self) -> None:
        """Note that the broker is connected (again) and may have lost retained messages."""
        self.reconnected.set()
        self.wake()

    @property
    def is_empty(self) -> bool:
        """True if nothing waits to be taken."""
        return not self._waiting

    def wake(self) -> None:
        """Make the controller look at once."""
        with self._changed:
            self._is_woken = True
            self._changed.notify()

    def take(self, timeout_s: float, gather_s: float = 0.0) -> list[Incoming]:
        """Return the next messages, in order.

        Args:
            timeout_s: Longest wait for the first message.
            gather_s: Waits for more, for a full batch costs little more than a message.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_woken or self._waiting, timeout_s)
            if not self._is_woken:
                self._changed.wait_for(
                    lambda: self._is_woken or len(self._waiting) >= BATCH_LENGTH,
                    gather_s if self._waiting else 0.0,
                )
            self.was_woken, self._is_woken = self._is_woken, False
            count = min(len(self._waiting), BATCH_LENGTH)
            batch = [self._waiting.popleft() for _ in range(count)]
            self._waiting_bytes -= sum(len(it.payload) + MAX_MESSAGE_OVERHEAD for it in batch)
            return batch
