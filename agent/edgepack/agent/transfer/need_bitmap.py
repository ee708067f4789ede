"""The chunks of a file that are missing, as the bitmap that a need carries."""

import zlib

from edgepack.agent.transfer.chunk_status import MissingChunks
from edgepack.wire.messages import NeedFile


def pack_missing(missing: MissingChunks) -> NeedFile:
    """The bitmap of one file's missing chunks."""
    bitmap = bytearray((missing.chunk_count + 7) // 8)
    for index in missing.chunks:
        bitmap[index // 8] |= 1 << (index % 8)
    return NeedFile(
        sha256=missing.sha256,
        chunk_count=missing.chunk_count,
        missing=zlib.compress(bytes(bitmap), 9),
    )


def unpack_missing(need: NeedFile) -> tuple[int, ...]:
    """The chunk indices in a bitmap that this module packed, ascending."""
    bitmap = zlib.decompress(need.missing)
    return tuple(i for i in range(need.chunk_count) if bitmap[i // 8] >> (i % 8) & 1)
