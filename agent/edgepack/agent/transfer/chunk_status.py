"""Status of chunks: the outcome of a received chunk, and the missing chunks."""

from typing import Literal

import msgspec

Content = bytes | memoryview
"""Of a chunk: what came is looked at where it lies."""
ChunkOutcome = Literal["new", "duplicate", "unsolved", "bad", "unwanted"]
"""What became of a chunk: taken, had already, coded with several that lack, damaged, of no file or
place that is wanted. Where it is different things to different models the first of them counts."""


class MissingChunks(msgspec.Struct, frozen=True, kw_only=True):
    """The missing chunks of a file.

    Attributes:
        sha256: The file.
        chunk_count: All of its chunks.
        chunks: Indices of the missing chunks, ascending; never empty.
        takes_coded: Whether coded chunks are accepted: each chunk is checked individually on
            arrival.
    """

    sha256: str
    chunk_count: int
    chunks: tuple[int, ...]
    takes_coded: bool = False
