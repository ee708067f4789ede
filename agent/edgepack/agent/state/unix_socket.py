"""Unix sockets in folders of any depth, and the users at their other ends."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

CREDENTIALS = struct.Struct("3i")
"""Process, user and group, as the kernel states them."""


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a path of a socket below the kernel's 107 bytes.

    Raises:
        OSError: There is no such folder.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def bind_path(made: socket.socket, path: Path, mode: int = 0) -> None:
    """Bind a socket at a path, in place of the socket of a process that was killed.

    The mode applies from the first moment: nobody else can connect before a `chmod`.

    Args:
        made: The socket; closed after an error.
        path: The path.
        mode: Permission bits; 0 lets nobody but root connect.

    Raises:
        OSError: The socket cannot be made.
    """
    try:
        if path.is_socket():
            path.unlink(missing_ok=True)
        os.fchmod(made.fileno(), mode)
        with short_path(path) as place:
            made.bind(place)
    except OSError:
        made.close()
        raise


def peer_user(peer: socket.socket) -> int:
    """Return the user at the other end of a connection."""
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(found)[1])
