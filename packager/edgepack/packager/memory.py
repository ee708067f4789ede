"""Memory of a build: return of freed memory, and division into parts that fit."""

import ctypes
from collections.abc import Iterable
from typing import TypeVar

_T = TypeVar("_T")


def return_freed_memory() -> None:
    """Return the C library's freed memory to the system, where possible (glibc).

    glibc keeps the gaps between blocks in use: most of a closed session's memory, and after a
    build's many short-lived sessions 20 MB and more, in addition to a child with a vendor's
    simulator.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def divide_by_size(sized: Iterable[tuple[_T, int]], most_bytes: int) -> list[list[_T]]:
    """Divide things, in their order, so that each part takes at most so many bytes.

    Args:
        sized: Each with its size in bytes.
        most_bytes: Room for a part; a thing that alone needs more is a part by itself.
    """
    parts: list[list[_T]] = []
    left = 0
    for thing, size in sized:
        if not parts or size > left:
            parts.append([])
            left = most_bytes
        parts[-1].append(thing)
        left -= size
    return parts
