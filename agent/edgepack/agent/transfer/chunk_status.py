"""Status of chunks: the outcome of a received chunk, and the missing chunks."""

from typing import Literal

import msgspec

Content = bytes | memoryview
"""Of a chunk: what came is looked at where it lies."""
ChunkOutcome = Literal["new", "duplicate", "unsolved", "bad", "unwanted"]
"""What became of a chunk: taken, had already, coded with several that lack, damaged, of no file or
place that is wanted. Where it is different things to different models the first of them counts."""


class MissingChunks(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks of one file that are missing.

    Attributes:
        sha256: The file.
        chunk_count: All of its chunks.
        chunks: Indices of the missing ones, ascending; never empty.
        takes_coded: Whether they may come coded: each is checked by itself as it comes.
    """

    sha256: str
    chunk_count: int
    chunks: tuple[int, ...]
    takes_coded: bool = False
