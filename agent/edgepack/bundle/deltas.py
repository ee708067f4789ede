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
    width, whole = record.width, record.size_bytes // record.width * record.width
    folded, items = bytearray(whole), whole // width
    for byte in range(width):
        folded[byte::width] = planes[byte * items : (byte + 1) * items]
    lanes = _Lanes(width, whole)
    packed = int.from_bytes(folded, "little")
    off = (packed >> 1) & ~lanes.high ^ lanes.fill(packed & lanes.low)
    base = int.from_bytes(_fitted(old, record.size_bytes)[:whole], "little")
    return lanes.add(base, off).to_bytes(whole, "little") + planes[whole:]


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
    whole = len(new) // width * width
    lanes = _Lanes(width, whole)
    after = int.from_bytes(new[:whole], "little")
    before = int.from_bytes(_fitted(old, len(new))[:whole], "little")
    off = lanes.subtract(after, before)
    sign = (off & lanes.high) >> (8 * width - 1)
    folded = ((off & ~lanes.high) << 1 ^ lanes.fill(sign)).to_bytes(whole, "little")
    return b"".join(folded[byte::width] for byte in range(width)) + new[whole:]


def _fitted(old: bytes, size_bytes: int) -> bytes:
    return old[:size_bytes].ljust(size_bytes, b"\0")


class _Lanes:
    """Arithmetic on many unsigned integers at once, side by side in a single int.

    Python's own integers are as quick as numpy here, and the agent's process needs no numpy.

    Args:
        width: Bytes of an integer.
        size_bytes: Length of all.
    """

    def __init__(self, width: int, size_bytes: int) -> None:
        self._bits = 8 * width
        self.low = int.from_bytes((b"\1" + bytes(width - 1)) * (size_bytes // width), "little")
        self.high = self.low << (self._bits - 1)

    def fill(self, low_bits: int) -> int:
        """Return integers of ones where the lowest bit is set, and of zeros elsewhere."""
        return (low_bits << self._bits) - low_bits

    def add(self, a: int, b: int) -> int:
        """Return the sums, modulo the size of an integer."""
        return ((a & ~self.high) + (b & ~self.high)) ^ ((a ^ b) & self.high)

    def subtract(self, a: int, b: int) -> int:
        """Return the differences, modulo the size of an integer."""
        return ((a | self.high) - (b & ~self.high)) ^ (~(a ^ b) & self.high)
