"""File descriptors of `edgepack fleet serve`: enough stay free for broker, database and files.

paho waits for its sockets with select(), which accepts only numbers below 1024. If the process's
limit allows, sockets of clients therefore get numbers from 1024 on.
"""

import fcntl
import logging
import resource
import socket
from pathlib import Path

log = logging.getLogger(__name__)

SELECT_LIMIT = 1024
"""FD_SETSIZE of select(2)."""
MOST_DESCRIPTORS = 65_536
RESERVED = 256
"""For brokers, the database's pool (15 connections of 3 files each), 40 threads that read files,
webhooks and sources."""
LEAST_CONNECTIONS = 16


def raise_descriptor_limit() -> int:
    """Raise the soft limit on open files as far as the hard limit allows; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("open files stay limited to %d because=%s", soft, error)
        return soft
    return wanted


def count_open() -> int:
    """Return the number of open descriptors; an estimate if the system has no list."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return RESERVED // 4


def fit_connections(wanted: int, limit: int, open_now: int) -> int:
    """Return how many connections of clients leave the reserve free.

    Args:
        wanted: The setting.
        limit: Descriptors that the process may open.
        open_now: Descriptors that are open before the first client comes.
    """
    low = min(limit, SELECT_LIMIT) - RESERVED - open_now
    return max(LEAST_CONNECTIONS, min(wanted, low + max(0, limit - SELECT_LIMIT)))


def move_up(opened: socket.socket) -> socket.socket:
    """Return the same connection with a descriptor beyond the range of select(), if free.

    The given socket is closed if the connection moved.
    """
    try:
        number = fcntl.fcntl(opened.fileno(), fcntl.F_DUPFD_CLOEXEC, SELECT_LIMIT)
    except OSError:  # The limit of the process is 1024 or lower.
        return opened
    moved = socket.socket(opened.family, opened.type, opened.proto, fileno=number)
    opened.close()
    return moved
