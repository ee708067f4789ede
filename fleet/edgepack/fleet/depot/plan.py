"""What the depot sends in one pass, from what devices say they lack.

A chunk that several devices lack goes out once, to everybody who listens to its file; a chunk
that one device lacks goes to that device alone. So a pass costs at most the size of the file
for the broadcast, however many devices listen.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

BROADCAST_AT = 2
"""From so many devices on a chunk is broadcast."""


class Lack(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks of one file that one device lacks, and when it said so.

    Attributes:
        device: Device id.
        chunks: Chunk indices.
        said_at: Monotonic clock, seconds.
    """

    device: str
    chunks: frozenset[int]
    said_at: float


class Pass(msgspec.Struct, frozen=True, kw_only=True):
    """Chunk indices to send, ascending: to all who listen, and to single devices."""

    broadcast: tuple[int, ...]
    repairs: dict[str, tuple[int, ...]]


def plan_pass(lacks: Sequence[Lack], sent_at: Mapping[int, float], grace_s: float) -> Pass:
    """Plans one pass over a file.

    Args:
        lacks: The latest of each device.
        sent_at: When each chunk was last broadcast, monotonic clock. A device that spoke before
            that (or less than `grace_s` after it) is not answered again: the chunk is on its way,
            and the device asks once more when it was lost.
        grace_s: How long a broadcast chunk may be on its way.
    """
    wanted: dict[int, list[str]] = defaultdict(list)
    for lack in lacks:
        for index in lack.chunks:
            if index not in sent_at or lack.said_at > sent_at[index] + grace_s:
                wanted[index].append(lack.device)
    repairs: dict[str, list[int]] = defaultdict(list)
    broadcast = []
    for index in sorted(wanted):
        devices = wanted[index]
        if len(devices) >= BROADCAST_AT:
            broadcast.append(index)
        else:
            repairs[devices[0]].append(index)
    return Pass(
        broadcast=tuple(broadcast), repairs={d: tuple(chunks) for d, chunks in repairs.items()}
    )
