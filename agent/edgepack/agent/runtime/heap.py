"""The heap of a long-lived process, which should return what a peak took."""

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Of glibc's mallopt(3)."""
_LEAST_BYTES = 64 * 1024
LARGE_BYTES = 1024 * 1024


def keep_heap_small() -> None:
    """Let all threads share one heap, and return free memory at its end to the system (glibc).

    By default each thread gets a heap of its own, which stays as large as it ever was.
    """
    with contextlib.suppress(AttributeError, OSError):  # Another C library.
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, _LEAST_BYTES)


def return_large_blocks() -> None:
    """Take each block of a MiB or more from the system, and return it when it is freed (glibc).

    By default glibc keeps blocks of up to 32 MiB after the first one was freed.
    """
    with contextlib.suppress(AttributeError, OSError):  # Another C library.
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * LARGE_BYTES)
