"""Interface of a source of chunks other than the broker: places in, bytes out.

Nothing that it gives is believed: `Download.accept` holds every chunk against the signed manifest.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk that is missing, and where it lies in what a source has.

    Attributes:
        start: Where it begins, bytes.
        size_bytes: Its length.
        sha256: The file that it is of.
        index: Which chunk of it.
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
    """A file that a source has: one of a bundle, or a whole archive.

    Attributes:
        url: Where it is.
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
    """The source does not have it, or does not give it; the message is one sentence's end."""


class Source(Protocol):
    """Source of chunks."""

    @property
    def title(self) -> str:
        """Title for a person."""

    def read(self, remotes: Sequence[Remote]) -> Iterator[Chunk]:
        """Give what is wanted, in any order, some of it or all.

        Raises:
            SourceError: The source cannot send further chunks.
        """

    def end(self) -> None:
        """End all transfers. Called from another thread."""
