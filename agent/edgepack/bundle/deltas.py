"""Deltas: chunks of a new bundle, derived from chunks of an older bundle with few bytes.

A bundle may carry, for an older bundle, a file for each variant:

    delta/<root digest of the older bundle>/<variant>

    header    "edgepack-delta" 0x01
    record    SHA-256 of the new chunk, SHA-256 of the old chunk, length of the new chunk (4 bytes),
              width of an item (1 byte), length of the rest (4 bytes), big-endian; zlib

The unpacked content is the difference of the two chunks, as integers of that width (little-endian).
Zigzag folding gives small integers of either sign few bits. The first bytes of all items come
first. The old chunk has the length of the new chunk: cut off, or filled with zeros.

Deltas are optional: a reader without deltas fetches the new chunks. The result is compared with the
new chunk's digest like any other chunk.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from edgepack.bundle.chunks import open_regular
from edgepack.bundle.metadata import MAX_CHUNK_BYTES
from edgepack.errors import BundleError

DELTA_FOLDER = "delta"
WIDTHS = (1, 2, 4)
MAGIC = b"edgepack-delta\x01"
_HEAD = struct.Struct(">32s32sIBI")
_SPARE_BYTES = 1024
"""What zlib adds to bytes that it cannot pack, and more."""


class DeltaRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a new chunk as a difference to an old chunk.

    Attributes:
        new, old: Their SHA-256 digests.
        size_bytes: Length of the new chunk.
        width: Bytes of an item.
        packed: The packed difference.
    """

    new: bytes
    old: bytes
    size_bytes: int
    width: int
    packed: bytes

    def encode(self) -> bytes:
        """Return its bytes in a file."""
        head = _HEAD.pack(self.new, self.old, self.size_bytes, self.width, len(self.packed))
        return head + self.packed


def delta_path(base: str, variant: str) -> str:
    """Return the path of a variant's delta in a bundle.

    Args:
        base: Root digest of the older bundle, hex.
        variant: The variant's name, which is the same in both.
    """
    return f"{DELTA_FOLDER}/{base}/{variant}"


def pack_difference(new: bytes, old: bytes) -> tuple[int, bytes]:
    """Return the shortest packed difference of two chunks, and its item width."""
    packed = {width: zlib.compress(_difference(new, old, width), 9) for width in WIDTHS}
    width = min(WIDTHS, key=lambda each: len(packed[each]))
    return width, packed[width]


def unpack_new(record: DeltaRecord, old: bytes) -> bytes:
    """Return the new chunk; the caller must check its digest.

    Raises:
        BundleError: The difference cannot be unpacked.
    """
    reader = zlib.decompressobj()
    try:
        planes = reader.decompress(record.packed, record.size_bytes + 1)
    except zlib.error as error:
        raise BundleError("a delta cannot be unpacked") from error
    if len(planes) != record.size_bytes:
        raise BundleError("a delta's length differs from its header")
    kind, whole = _kind(record.width), record.size_bytes // record.width * record.width
    values = np.frombuffer(planes[:whole], np.uint8).reshape(record.width, -1).T
    folded = np.ascontiguousarray(values).view(kind).ravel()
    off = (folded >> 1) ^ (0 - (folded & 1))
    base = np.frombuffer(_fitted(old, record.size_bytes)[:whole], kind)
    return (base + off).tobytes() + planes[whole:]


def read_records(path: Path) -> Iterator[DeltaRecord]:
    """Yield the records of a file in order.

    Raises:
        BundleError: The file is not a delta, or is damaged.
    """
    with open_regular(path) as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise BundleError("this is not a delta", found_in=path.name)
        while head := file.read(_HEAD.size):
            if len(head) != _HEAD.size:
                raise BundleError("the delta ends within a record", found_in=path.name)
            new, old, size_bytes, width, length = _HEAD.unpack(head)
            is_sound = 0 < size_bytes <= MAX_CHUNK_BYTES and width in WIDTHS
            if not is_sound or length > size_bytes + _SPARE_BYTES:
                raise BundleError("a record of the delta makes no sense", found_in=path.name)
            packed = file.read(length)
            if len(packed) != length:
                raise BundleError("the delta ends within a record", found_in=path.name)
            yield DeltaRecord(new=new, old=old, size_bytes=size_bytes, width=width, packed=packed)


def _difference(new: bytes, old: bytes, width: int) -> bytes:
    kind, whole = _kind(width), len(new) // width * width
    off = np.frombuffer(new[:whole], kind) - np.frombuffer(_fitted(old, len(new))[:whole], kind)
    sign = off >> (8 * width - 1)
    folded = (off << 1) ^ (0 - sign)
    return folded.view(np.uint8).reshape(-1, width).T.tobytes() + new[whole:]


def _fitted(old: bytes, size_bytes: int) -> bytes:
    return old[:size_bytes].ljust(size_bytes, b"\0")


def _kind(width: int) -> np.dtype[np.unsignedinteger[np.typing.NBitBase]]:
    return np.dtype(f"<u{width}")
