"""Sets of small numbers as bitmaps: number i is bit i % 8 of byte i // 8, least bit first."""

from collections.abc import Collection


def pack_bits(numbers: Collection[int], count: int) -> bytes:
    """Return the bitmap of some of the numbers 0 to `count` - 1."""
    bitmap = bytearray((count + 7) // 8)
    for number in numbers:
        bitmap[number >> 3] |= 1 << (number & 7)
    return bytes(bitmap)


def read_bits(bitmap: bytes, count: int | None = None) -> list[int]:
    """Return the numbers below `count` that are set, ascending; None is as many as there are
    bits.
    """
    found = [8 * at + bit for at, byte in enumerate(bitmap) if byte for bit in _BITS[byte]]
    return found if count is None else [number for number in found if number < count]


_BITS = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]
