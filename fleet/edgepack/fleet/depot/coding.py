"""Choice of chunks for a coded message, so that many devices recover a missing chunk.

A device recovers a chunk from a message if a single member is missing, and nothing if several are
missing. The best choice is not computable in reasonable time, so chunks are added one after another
as long as the message's worth rises (index coding, greedily).
"""

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgepack.fleet.depot.listener import Flags
from edgepack.wire.coded import MAX_MEMBERS

Floats = NDArray[np.float32]

MOST_DEVICES = 2000
"""The devices that a message is chosen for, at most; others get something out of it by chance."""
LEAST_SERVED = 2


class Combination(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks of a message.

    Attributes:
        members: Indices of the chunks, ascending.
        served: The devices, by place, with a single missing member, and that member.
    """

    members: tuple[int, ...]
    served: tuple[tuple[int, int], ...]


def combine(due: Flags, lacking: Flags) -> Iterator[Combination]:
    """Choose messages, the best first, until a message would serve only a single device.

    Args:
        due: Chunks (columns) to send to each device (row).
        lacking: Chunks that a device may lack when the message arrives, including chunks in flight.
    """
    rows = np.argsort(-np.count_nonzero(due, axis=1), kind="stable")[:MOST_DEVICES]
    left, known = due[rows].astype(np.float32), lacking[rows].astype(np.float32)
    while True:
        members, solved = _choose(left, known)
        served = np.flatnonzero(solved >= 0)
        if len(served) < LEAST_SERVED:
            return
        left[served, solved[served]] = 0
        pairs = zip(rows[served].tolist(), solved[served].tolist(), strict=True)
        yield Combination(members=tuple(sorted(members)), served=tuple(pairs))


def _choose(due: Floats, lacking: Floats) -> tuple[list[int], NDArray[np.int64]]:
    """Return the best message that is found.

    Args:
        due, lacking: As for `combine`, as 0 and 1.

    Returns:
        Its chunks, and by device the recovered chunk; -1 is none.
    """
    worth = _worth(due)
    gains = worth @ due  # what each chunk would add to the message
    counts, solved = np.zeros(len(due), int), np.full(len(due), -1)
    members: list[int] = []
    while len(members) < MAX_MEMBERS and gains.max(initial=0.0) > 0:
        index = int(gains.argmax())
        members.append(index)
        touched = np.flatnonzero(lacking[:, index])
        first, second = touched[counts[touched] == 0], touched[counts[touched] == 1]
        counts[touched] += 1
        new, lost = first[due[first, index] > 0], second[solved[second] >= 0]
        solved[new], solved[lost] = index, -1
        # Who lacks one of them already gains nothing by another, and loses by it what it had.
        gains -= worth[first] @ due[first] + worth[new] @ lacking[new]
        gains += worth[lost] @ lacking[lost]
        gains[members] = 0
    return members, solved


def _worth(due: Floats) -> Floats:
    """Return the weight of each device: higher with more missing chunks, because the last device
    decides the number of messages. A device that lacks nearly all chunks must not displace other
    devices.
    """
    counts = np.count_nonzero(due, axis=1).astype(np.float32)
    usual = float(np.median(counts[counts > 0])) if counts.any() else 0.0
    worth: Floats = np.minimum(counts, 2 * usual) ** 2
    return worth
