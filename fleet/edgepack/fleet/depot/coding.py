"""Choice of chunks for one coded message, so that many devices recover a missing chunk.

A device gets something out of a message of which it lacks one chunk, and nothing of one of which it
lacks several. The best choice is not to be had in any sensible time, so one chunk after another is
added as long as the message is worth more with it (index coding, greedily).
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
    """The chunks of one message.

    Attributes:
        members: Indices of the chunks, ascending.
        served: The devices, by place, that lack just one of them, and which one that is.
    """

    members: tuple[int, ...]
    served: tuple[tuple[int, int], ...]


def combine(due: Flags, lacking: Flags) -> Iterator[Combination]:
    """Choose messages, the best first, until one would be for a single device.

    Args:
        due: What each device (row) is to be sent of the chunks (column).
        lacking: What it may lack when the message comes: what is on its way to it, too.
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
        due, lacking: As `combine` has them, as 0 and 1.

    Returns:
        Its chunks, and by device which of them it gets; -1 is none.
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
    decides the number of messages. A device that lacks nearly all chunks must not displace others.
    """
    counts = np.count_nonzero(due, axis=1).astype(np.float32)
    usual = float(np.median(counts[counts > 0])) if counts.any() else 0.0
    worth: Floats = np.minimum(counts, 2 * usual) ** 2
    return worth
