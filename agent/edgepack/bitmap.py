"""Sets of small numbers as bitmaps: number i is bit i % 8 of byte i // 8, least bit first."""

from collections.abc import Collection

import numpy as np


def pack_bits(numbers: Collection[int], count: int) -> bytes:
    """Return the bitmap of some of the numbers 0 to `count` - 1."""
    flags = np.zeros(count, bool)
    flags[list(numbers)] = True
    return np.packbits(flags, bitorder="little").tobytes()


def read_bits(bitmap: bytes, count: int | None = None) -> list[int]:
    """Return the numbers below `count` that are set, ascending; None is as many as there are
    bits.
    """
    packed = np.frombuffer(bitmap, np.uint8)
    return np.flatnonzero(np.unpackbits(packed, count=count, bitorder="little")).tolist()
