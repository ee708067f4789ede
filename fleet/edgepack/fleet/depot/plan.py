"""What the depot sends next of a file, from what devices say they lack.

A chunk that several devices lack goes out once, to everybody who listens to the file; a chunk that
one device lacks goes to that device alone. So a file costs about its size, however many devices
listen.
"""

from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from edgepack.fleet.depot.listener import Listener, Times

BROADCAST_AT = 2
"""From so many devices on a chunk is broadcast."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Chunk indices to send, in order: to all who listen, and to single devices."""

    broadcast: deque[int]
    single: dict[str, deque[int]]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left of it."""
        return not self.broadcast and not any(self.single.values())


EMPTY = Plan(broadcast=deque(), single={})


def make_plan(listeners: Sequence[Listener], sent_at: Times, cursor: int) -> Plan:
    """Plans what is due now.

    Args:
        listeners: The devices that lack chunks; one with a limit of its own is served singly.
        sent_at: When each chunk was broadcast last; 0 is never.
        cursor: Where the broadcast goes on: one that joins late gets the rest with the others, and
            the beginning with others that joined late.
    """
    wanted = np.zeros(len(sent_at), np.int32)
    due = {}
    for listener in listeners:
        flags = due[listener.device] = listener.due(sent_at)
        if not listener.bytes_per_s:
            wanted += flags
    indices = np.flatnonzero(wanted >= BROADCAST_AT)
    start = int(np.searchsorted(indices, cursor))
    broadcast = deque(np.roll(indices, -start).tolist())
    single = {}
    for listener in listeners:
        flags = due[listener.device]
        if not listener.bytes_per_s:
            flags = flags & (wanted < BROADCAST_AT)
        if flags.any():
            single[listener.device] = deque(np.flatnonzero(flags).tolist())
    return Plan(broadcast=broadcast, single=single)
