"""Processes left behind by a hook or a probe: the agent adopts and ends stray processes.

A process in a separate session outlives its former group. On Linux the agent registers as the
parent of such orphans, so the agent can find them.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
"""Of Linux's prctl(2)."""
_ROUNDS = 50


def adopt_strays() -> None:
    """Make this process the parent of its orphaned descendants (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_strays(spared: Collection[int] = ()) -> int:
    """Kill and reap every child of this process; call only without other own children.

    Args:
        spared: Own children that live on.

    Returns:
        How many there were.
    """
    ended = 0
    for _ in range(_ROUNDS):  # What a killed one had started comes next.
        children = set(_children()) - set(spared)
        if not children:
            break
        for pid in children:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                ended += 1
    return ended


def _children() -> list[int]:
    """Return children of every thread of this process."""
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found
