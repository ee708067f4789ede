"""What is said of chunks: what became of one, and which are still to come."""

from typing import Literal

import msgspec

Content = bytes | memoryview
"""Of a chunk: what came is looked at where it lies."""
ChunkOutcome = Literal["new", "duplicate", "unwanted", "bad"]
"""What became of a chunk: taken, had already, of no file or place that is wanted, damaged."""


class MissingChunks(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks of one file that are missing.

    Attributes:
        sha256: The file.
        chunk_count: All of its chunks.
        chunks: Indices of the missing ones, ascending; never empty.
    """

    sha256: str
    chunk_count: int
    chunks: tuple[int, ...]
