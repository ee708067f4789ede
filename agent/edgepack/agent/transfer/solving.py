"""Getting the one chunk that lacks out of a coded message; of others nothing is kept."""

from collections.abc import Callable, Collection, Sequence
from itertools import chain

import msgspec

from edgepack.agent.transfer.chunk_status import ChunkOutcome
from edgepack.wire.coded import CodedChunk, xor


class Solved(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk out of a coded message, trusted for nothing."""

    index: int
    content: bytes


def solve(
    coded: CodedChunk,
    *,
    sizes: Sequence[int],
    lacking: Collection[int],
    read: Callable[[int], bytes],
) -> Solved | ChunkOutcome:
    """Return XORs out of a message what is there of the file.

    Args:
        coded: The message.
        sizes: Lengths of the file's chunks, bytes.
        lacking: Which of them are missing.
        read: Reads one that is there.

    Returns:
        The chunk, or what the message is to this device when there is none in it.

    Raises:
        OSError: A chunk that is there cannot be read.
    """
    if coded.members[-1] >= len(sizes):
        return "unwanted"
    if len(coded.content) != max(sizes[index] for index in coded.members):
        return "bad"
    wanted = [index for index in coded.members if index in lacking]
    if len(wanted) != 1:
        return "unsolved" if wanted else "duplicate"
    (index,) = wanted
    others = (read(other) for other in coded.members if other != index)
    return Solved(index=index, content=xor(chain((coded.content,), others))[: sizes[index]])
