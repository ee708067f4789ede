"""Loopback ports that no two tests use at the same time, in any process.

Another process may take a port that the kernel picked and the test released. The ports here lie
below the range from which the kernel picks. Each process takes ports from a block, owned by a lock
on a file until the process ends.
"""

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

_FIRST, _BLOCK, _BLOCKS = 10_000, 100, 220


class _Block:
    """A hundred ports that this process owns."""

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir()) / f"edgepack-test-ports-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        for number in random.sample(range(_BLOCKS), _BLOCKS):
            lock = os.open(folder / str(number), os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:  # open, and so locked, until the process ends
                self._first, self._next = _FIRST + number * _BLOCK, 0
                return
        raise RuntimeError(f"all {_BLOCKS} blocks of ports belong to other processes")

    def take(self) -> int:
        """Return the next port on which no process listens."""
        for _ in range(_BLOCK):
            port = self._first + self._next
            self._next = (self._next + 1) % _BLOCK
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
                return port
        raise RuntimeError(f"ports {self._first} to {self._first + _BLOCK} are all in use")


_owned_block = cache(_Block)


def free_port() -> int:
    """Return a port of 127.0.0.1 for a server of a test."""
    return _owned_block().take()
