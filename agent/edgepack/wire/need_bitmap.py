"""Bitmap of missing chunks in a need: packed and read only here."""

import zlib
from collections.abc import Collection

from edgepack.bitmap import pack_bits, read_bits
from edgepack.errors import TransferError
from edgepack.wire.transfers import NeedFile


def pack_missing(sha256: str, chunks: Collection[int], chunk_count: int) -> NeedFile:
    """State which chunks of a file are missing.

    Args:
        sha256: The file.
        chunks: Indices of the missing chunks.
        chunk_count: All that the file has.
    """
    missing = zlib.compress(pack_bits(chunks, chunk_count), 6)
    return NeedFile(sha256=sha256, chunk_count=chunk_count, missing=missing)


def read_missing(need: NeedFile, chunk_count: int) -> tuple[int, ...]:
    """Return the indices of the chunks that a need says are missing, ascending.

    Args and errors are the same as in `read_bitmap`.
    """
    return tuple(read_bits(read_bitmap(need, chunk_count), chunk_count))


def read_bitmap(need: NeedFile, chunk_count: int) -> bytes:
    """Return the missing chunks of a need: bit i of byte i // 8, least significant bit first.

    Args:
        need: Need as received.
        chunk_count: Chunks that the file really has.

    Raises:
        TransferError: The need counts other chunks, or its bitmap is not a zlib stream or has
            another length.
    """
    if need.chunk_count != chunk_count:
        raise TransferError(
            f"need counts {need.chunk_count} chunks of a file that has {chunk_count}",
            found_in=need.sha256,
        )
    length = (chunk_count + 7) // 8
    reader = zlib.decompressobj()
    try:
        bitmap = reader.decompress(need.missing, length + 1)
    except zlib.error as error:
        raise TransferError(
            f"need has no readable bitmap: {error}", found_in=need.sha256
        ) from error
    if len(bitmap) != length:
        raise TransferError(
            f"need's bitmap is not the {length} bytes that {chunk_count} chunks take",
            found_in=need.sha256,
        )
    return bitmap
