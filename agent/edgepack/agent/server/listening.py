"""Listeners of the model server, and the connections that they accepted."""

import asyncio
import contextlib
import errno
import fcntl
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

from edgepack.agent.config import ServerConfig
from edgepack.agent.server.blocks import Blocks
from edgepack.agent.server.budget import Budget
from edgepack.agent.server.connection import Connection, Handler
from edgepack.agent.server.http_messages import HttpError
from edgepack.agent.state.model_server import LOCK_FILE, SOCKET_FILE
from edgepack.agent.state.state_file import share_path
from edgepack.agent.state.unix_socket import bind_path
from edgepack.errors import DeviceError
from edgepack.metrics.settings import read_address

BACKLOG = 1024
LOOK_S = 0.5
"""Seconds between two looks at slow clients."""
FRESH_S = 0.2
"""A connection without a request is idle after so long, seconds: its request may be under way."""
STALLED_LOOKS = 4
"""A client that sends and reads nothing between so many looks makes room for others. Looks, since a
loop that was busy has heard no client meanwhile."""
MOST_REJECTED = 512
"""Rejected connections that stay open until their clients have read why; the oldest ends first."""
_BUFFER_BYTES = 256 * 1024
_SPARE_FILES = 256 + MOST_REJECTED
"""Descriptors for models, libraries, shared memory and rejected connections."""


class Listeners:
    """Listens on a unix socket and on loopback; used by the event loop's thread alone.

    Args:
        folder: Folder of the unix socket.
        limits: Settings.
        handle: Handles requests.
        blocks: Memory of large requests.
    """

    def __init__(self, folder: Path, limits: ServerConfig, handle: Handler, blocks: Blocks) -> None:
        self.limits, self._folder, self._handle = limits, folder, handle
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        """Where bytes of every connection arrive, one after the other."""
        self.blocks = blocks
        self.budget = Budget(limits.memory_bytes)
        """Memory of requests and responses."""
        self._connections: set[Connection] = set()
        self._rejected: dict[Connection, None] = {}
        self._servers: list[asyncio.Server] = []
        self._files: list[int] = []
        self._look: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._most = min(limits.connections, _raise_file_limit() - _SPARE_FILES)
        self.rejected = 0
        """Connections that found no room."""

    @property
    def count(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def start(self) -> None:
        """Listen from now on.

        Raises:
            DeviceError: Another server runs, or an address cannot be used.
        """
        self._files.append(_lock(self._folder))
        try:
            unix = bind_unix(self._folder, SOCKET_FILE, self.limits)
            self._servers.append(
                await self._loop.create_unix_server(self._connect, sock=unix, backlog=BACKLOG)
            )
            if self.limits.listen:
                address = read_address(self.limits.listen)
                self._servers.append(
                    await self._loop.create_server(
                        self._connect, address.host, address.port, backlog=BACKLOG
                    )
                )
        except OSError as error:
            await self.stop(0.0)
            raise DeviceError(
                f"the model server cannot listen: {error.strerror or error}",
                found_in=self.limits.listen or str(self._folder / SOCKET_FILE),
                remedy="name a free port in server.listen; the folder must be writable",
            ) from error

    async def stop(self, patience_s: float) -> None:
        """Accept nothing more, wait until running requests are answered, and end all connections.

        Args:
            patience_s: How long to wait.
        """
        for server in self._servers:
            server.close()
        if self._files:
            with contextlib.suppress(OSError):
                (self._folder / SOCKET_FILE).unlink()
        for connection in tuple(self._connections):
            connection.end()
        until = self._loop.time() + patience_s
        while self._connections and self._loop.time() < until:
            await asyncio.sleep(0.01)
        for connection in (*self._connections, *self._rejected):
            connection.abort()
        if self._look is not None:
            self._look.cancel()
        while self._files:
            os.close(self._files.pop())

    def admit(self, connection: Connection) -> bool:
        """Register a connection; end an idle or stalled one if there are too many.

        Returns:
            Whether there is room.
        """
        if len(self._connections) >= self._most:
            since = self._loop.time() - FRESH_S
            old = sorted((one for one in self._connections if one.since <= since), key=_since)
            idle = next((one for one in old if one.is_idle), None)
            if idle is not None:
                self._drop(idle)
            elif not self._end_stalled(lambda one: True):
                self.rejected += 1
                self._rejected[connection] = None
                if len(self._rejected) > MOST_REJECTED:
                    oldest = next(iter(self._rejected))
                    del self._rejected[oldest]
                    oldest.abort()
                self._look_later()
                return False
        self._connections.add(connection)
        self._look_later()
        return True

    def dismiss(self, connection: Connection) -> None:
        """Forget a connection that ended."""
        self._connections.discard(connection)
        self._rejected.pop(connection, None)

    def end_stalled(self, asking: Connection | None) -> bool:
        """End the longest stalled connection with memory; return whether there was one."""
        return self._end_stalled(lambda one: one.charged > 0 and one is not asking)

    def admit_response(self, length: int, asking: Connection | None) -> None:
        """Reserve the memory of a response; end stalled connections if too little is left.

        Raises:
            HttpError: Others hold the memory.
        """
        while not self.budget.take_response(length):
            if not self.end_stalled(asking):
                raise HttpError(
                    429,
                    f"responses hold all memory of the server; this one has {length} bytes",
                    retry_s=1,
                )

    def _end_stalled(self, is_meant: Callable[[Connection], bool]) -> bool:
        found = [
            one
            for one in self._connections
            if one.is_stalled and one.still >= STALLED_LOOKS and is_meant(one)
        ]
        if found:
            self._drop(max(found, key=lambda one: one.still))
        return bool(found)

    def _drop(self, connection: Connection) -> None:
        self._connections.discard(connection)
        connection.drop()

    def _look_later(self) -> None:
        if self._look is None:
            self._look = self._loop.call_later(LOOK_S, self._look_at_clients)

    def _look_at_clients(self) -> None:
        now, self._look = self._loop.time(), None
        for connection in (*self._connections, *self._rejected):
            connection.look(now)
        if self.blocks.free_unused() or self._connections or self._rejected:
            self._look_later()

    def _connect(self) -> Connection:
        return Connection(self, self._handle, self.budget)


def _since(connection: Connection) -> float:
    return connection.since


def _lock(folder: Path) -> int:
    """Lock the folder's socket for this process; the kernel ends the lock with the process.

    Raises:
        DeviceError: Another server runs.
    """
    try:
        file = os.open(
            folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise
    except OSError as error:
        is_taken = error.errno == errno.EWOULDBLOCK
        problem = "another server runs" if is_taken else error.strerror or str(error)
        raise DeviceError(
            f"the model server cannot start: {problem}",
            found_in=str(folder / LOCK_FILE),
            remedy="edgepack-agent status shows a server that the agent started"
            if is_taken
            else "run as the agent's user",
        ) from error
    return file


def bind_unix(folder: Path, name: str, limits: ServerConfig) -> socket.socket:
    """Return a socket bound in the folder, with the folder's group.

    Raises:
        OSError: The socket cannot be made.
    """
    listening = socket.socket(socket.AF_UNIX)
    bind_path(listening, folder / name)
    try:
        share_path(folder / name, folder.stat().st_gid, int(limits.mode, 8))
    except OSError:
        listening.close()
        raise
    return listening


def _raise_file_limit() -> int:
    """Raise the number of descriptors as far as allowed; return the number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return hard
    return soft
