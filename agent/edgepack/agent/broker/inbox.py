"""Bounded queue of messages from the broker's thread to the agent's thread.

Offers and connection events have a separate lane, so that a flood of chunks cannot displace an
offer. If the queue of chunks is full, the broker's thread pauses for a moment, so that the broker
stores further messages. Then the chunk is dropped and counted; the agent requests the chunk again.
"""

import threading
from collections import deque

import msgspec

MAX_CHUNKS = 128
"""8 MiB of chunks of 64 KiB."""
ROOM_S = 0.25
"""How long a chunk waits for room. Four of them come at a time, so the broker's thread is away for
a second at most, and goes on with whatever else came."""
MAX_OTHERS = 256


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """A message."""

    topic: str
    payload: bytes


class Connected(msgspec.Struct, frozen=True, kw_only=True):
    """The broker is there, and the subscriptions are renewed."""


class Acknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """The broker's answer to a message that was published with QoS 1.

    Attributes:
        message_id: The message.
        code: MQTT 5's reason code; below 0x80 the broker accepted the message.
        reason: The same in words.
    """

    message_id: int
    code: int = 0
    reason: str = ""


Item = Arrived | Connected | Acknowledged


class Inbox:
    """Two bounded lanes between two threads."""

    def __init__(self) -> None:
        lock = threading.Lock()
        self._condition, self._room = threading.Condition(lock), threading.Condition(lock)
        self._chunks: deque[Arrived] = deque()
        self._others: deque[Item] = deque()
        self._woken = False
        self.dropped_chunks = 0
        self.dropped_others = 0

    def put_chunk(self, item: Arrived) -> None:
        """Put a chunk into the queue, or drop the chunk if the queue stays full."""
        with self._condition:
            if len(self._chunks) >= MAX_CHUNKS and not self._room.wait_for(
                lambda: len(self._chunks) < MAX_CHUNKS, ROOM_S
            ):
                self.dropped_chunks += 1
                return
            self._chunks.append(item)
            self._condition.notify()

    def put(self, item: Item) -> None:
        """Put any other message into the queue; drop the oldest message if the queue is full."""
        with self._condition:
            if len(self._others) >= MAX_OTHERS:
                self._others.popleft()
                self.dropped_others += 1
            self._others.append(item)
            self._condition.notify()

    def wake(self) -> None:
        """End the current or next wait."""
        with self._condition:
            self._woken = True
            self._condition.notify()

    def get(self, timeout_s: float) -> Item | None:
        """Return the next item, chunks last; None if nothing arrived in time."""
        with self._condition:
            if timeout_s > 0:
                self._condition.wait_for(
                    lambda: self._others or self._chunks or self._woken, timeout_s
                )
            self._woken = False
            if self._others:
                return self._others.popleft()
            if self._chunks:
                if len(self._chunks) <= MAX_CHUNKS // 2:
                    self._room.notify()
                return self._chunks.popleft()
            return None
