"""What this process has freed goes back to the system before another needs its room."""

import ctypes


def return_free_memory() -> None:
    """Gives back what the C library keeps of freed memory, where it can (glibc).

    It keeps what lies between blocks in use: after a build's many short-lived sessions 20 MB and
    more, which a child with a vendor's simulator would come on top of.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
