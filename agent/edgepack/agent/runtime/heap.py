"""The heap of a long-lived process, which should return what a peak took (glibc)."""

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Of glibc's mallopt(3)."""
_LEAST_BYTES = 64 * 1024
LARGE_BYTES = 1024 * 1024


def keep_heap_small() -> None:
    """Let all threads share one heap, and return free memory at its end to the system.

    By default each thread gets a heap of its own, which stays as large as it ever was.
    """
    _set({_M_ARENA_MAX: 1, _M_TRIM_THRESHOLD: _LEAST_BYTES})


def return_large_blocks() -> None:
    """Take each block of a MiB or more from the system, and return it when it is freed.

    By default glibc keeps blocks of up to 32 MiB after the first one was freed.
    """
    _set({_M_MMAP_THRESHOLD: LARGE_BYTES, _M_TRIM_THRESHOLD: 2 * LARGE_BYTES})


def give_memory_back() -> None:
    """Return freed memory to the system, where the C library can.

    A release is opened next to the serving release. glibc keeps the memory that the old release
    frees, spread over its heaps, and the next release does not fit into these gaps: processes grew
    with each swap.
    """
    if gives_memory_back():
        ctypes.CDLL(None).malloc_trim(0)


def gives_memory_back() -> bool:
    """Check whether the C library can return freed memory on request."""
    return hasattr(ctypes.CDLL(None), "malloc_trim")


def _set(settings: dict[int, int]) -> None:
    with contextlib.suppress(AttributeError, OSError):  # Another C library.
        mallopt = ctypes.CDLL(None).mallopt
        for number, value in settings.items():
            mallopt(number, value)
