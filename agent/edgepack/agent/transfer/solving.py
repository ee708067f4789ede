"""Decoding of the single missing chunk of a coded message; other messages are dropped."""

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
    """XOR the present chunks of the file out of a message.

    Args:
        coded: The message.
        sizes: Lengths of the file's chunks, bytes.
        lacking: Indices of the missing chunks.
        read: Reads a present chunk.

    Returns:
        The chunk, or the outcome for this device if the message gives no chunk.

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
