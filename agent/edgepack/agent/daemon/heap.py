"""The heap of the agent, which should return what an update took."""

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_ARENA_MAX = -1, -8
"""Of glibc's mallopt(3)."""
_LEAST_BYTES = 64 * 1024


def keep_heap_small() -> None:
    """Let all threads share one heap, and return free memory at its end to the system (glibc).

    By default each thread gets a heap of its own, which stays as large as it ever was.
    """
    with contextlib.suppress(AttributeError, OSError):  # Another C library.
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_TRIM_THRESHOLD, _LEAST_BYTES)
