"""Interface of a source of chunks other than the broker: places in, bytes out.

Data of a source is untrusted: `Download.accept` compares every chunk with the signed manifest.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A missing chunk, and its place in a source's data.

    Attributes:
        start: Offset of the chunk, bytes.
        size_bytes: Its length.
        sha256: File of the chunk.
        index: Index of the chunk.
    """

    start: int
    size_bytes: int
    sha256: str
    index: int

    @property
    def end(self) -> int:
        """Offset at which the next piece may begin."""
        return self.start + self.size_bytes


class Remote(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a source: a file of a bundle, or a whole archive.

    Attributes:
        url: URL of the file.
        size_bytes: Its length; None where that is not known.
        pieces: Pieces to fetch, in order.
    """

    url: str
    size_bytes: int | None
    pieces: tuple[Piece, ...]


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that came, trusted for nothing."""

    sha256: str
    index: int
    content: bytes


class SourceError(OSError):
    """Failure of a source: data is missing or not sent; the message is the end of a sentence."""


class Source(Protocol):
    """Source of chunks."""

    @property
    def title(self) -> str:
        """Title for a person."""

    def read(self, remotes: Sequence[Remote]) -> Iterator[Chunk]:
        """Yield wanted chunks, in any order, some or all.

        Raises:
            SourceError: The source cannot send further chunks.
        """

    def end(self) -> None:
        """End all transfers. Called from another thread."""
