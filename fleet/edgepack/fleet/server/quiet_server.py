"""A uvicorn that bounds its clients, and that sleeps while nobody asks.

The server accepts connections itself, so that excess connections are closed at no cost. The server
runs periodic checks once a second, and at once at a signal: uvicorn does so ten times a second,
which costs a third of a quiet fleet's CPU time.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from types import FrameType

import uvicorn

from edgepack.fleet.server.bounded_protocol import AcceptedPeer, BoundedProtocol
from edgepack.fleet.server.connections import HEADER_S, Connection, Connections
from edgepack.fleet.server.descriptors import move_up

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_EVERY_TICK = 0
"""uvicorn renews the date of its answers at ticks that ten divides; each of ours is one."""
BACKLOG = 1024
ACCEPTED_AT_ONCE = 8
"""Then whoever is connected has a turn: a request is read before 100 others can push it out."""
DEFER_S = 5
"""So long Linux itself keeps a connection on which nothing came."""
PAUSE_S = 0.5
"""After an accept() that failed."""


class QuietServer(uvicorn.Server):
    """Serves until a signal comes, or `should_exit` is set.

    Args:
        config: Of uvicorn.
        listener: Where clients come.
        connections: Limits connections.
    """

    _loop: asyncio.AbstractEventLoop | None = None
    _signalled: asyncio.Event | None = None

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, connections: Connections
    ) -> None:
        super().__init__(config)
        self._listener, self._connections = listener, connections
        self._setups: set[asyncio.Task[None]] = set()
        self._is_open = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets=[])
        self._listener.setblocking(False)
        if hasattr(socket, "TCP_DEFER_ACCEPT"):
            self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, DEFER_S)
        self._listener.listen(BACKLOG)
        self._is_open = True
        self._listen()

    async def main_loop(self) -> None:
        """Check at intervals until the server shall end."""
        self._loop, self._signalled = asyncio.get_running_loop(), asyncio.Event()
        while not await self.on_tick(_EVERY_TICK):
            self._connections.look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._signalled.wait(), _LOOK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, and close open connections."""
        self._is_open = False
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for task in tuple(self._setups):
            task.cancel()
        await super().shutdown(sockets=[])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End at once: the signal wakes the loop."""
        super().handle_exit(sig, frame)
        if self._loop is not None and self._signalled is not None:
            self._loop.call_soon_threadsafe(self._signalled.set)

    def _listen(self) -> None:
        if self._is_open:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                opened, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Without a pause the loop would do nothing else: the client still waits.
                self._connections.note_refused(f"accept: {error.strerror or error}")
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener)
                loop.call_later(PAUSE_S, self._listen)
                return
            self._admit(opened, str(address[0]))

    def _admit(self, opened: socket.socket, host: str) -> None:
        peer = AcceptedPeer()
        connection = self._connections.admit(host, peer)
        if connection is None:
            opened.close()
            return
        opened = move_up(opened)
        opened.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._set_up(opened, connection, peer))
        peer.task = task

        def done(_: asyncio.Task[None]) -> None:
            self._setups.discard(task)
            if peer.protocol is None:
                self._connections.forget(connection)
                opened.close()

        self._setups.add(task)
        task.add_done_callback(done)

    async def _set_up(
        self, opened: socket.socket, connection: Connection, peer: AcceptedPeer
    ) -> None:
        def make_protocol() -> BoundedProtocol:
            return BoundedProtocol(
                self.config,
                self.server_state,
                self.lifespan.state,
                self._connections,
                connection,
                peer,
            )

        context = self.config.ssl
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                make_protocol,
                opened,
                ssl=context,
                ssl_handshake_timeout=HEADER_S if context is not None else None,
            )
        except (OSError, ssl.SSLError) as error:
            self._connections.note_refused("no TLS handshake", connection.address)
            log.debug("address=%s no TLS handshake because=%s", connection.address, error)
