"""Core files, which would hold the private keys, tokens and passwords of a process."""

import ctypes
import resource
import sys

_PR_SET_DUMPABLE = 4
"""Of Linux's prctl(2)."""


def forbid_core_files() -> None:
    """Keep this process's memory out of core files, and from other processes of its user.

    Called first by every program that may load a key. A limit of 0 does not stop a kernel that
    pipes cores to a program, so on Linux the process is also not dumpable. Children inherit the
    limit, whose maximum stays: a child may raise its limit again.
    """
    _, maximum = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, maximum))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
