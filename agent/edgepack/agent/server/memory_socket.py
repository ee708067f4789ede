"""Unix socket over which clients pass the descriptors of sealed memory.

The library of asyncio drops descriptors that come with bytes, so these have a socket of their own.
A connection takes a single descriptor, and the region lives for as long as the connection: a
client that ends, in whatever way, leaves nothing behind. Answers have the form of HTTP.
"""

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from typing import NamedTuple

import msgspec

from edgepack.agent.inference_protocol.messages import RegionStatus
from edgepack.agent.server.connection import REQUEST_S, error_response
from edgepack.agent.server.http_messages import HttpError, Response, write_head
from edgepack.agent.server.listening import BACKLOG, Listeners, bind_unix
from edgepack.agent.server.regions import Regions
from edgepack.agent.state.model_server import MEMORY_FILE
from edgepack.agent.state.unix_socket import peer_user
from edgepack.errors import DeviceError

MAX_CLIENTS = 128
_MOST_FILES = 4


class _Client(NamedTuple):
    """Client that passed its memory.

    Attributes:
        uid: Its user.
        region: Its region.
    """

    uid: int
    region: RegionStatus


class MemorySocket:
    """The socket; used by the event loop's thread alone.

    Args:
        folder: Folder of the socket.
        listeners: Settings, and the memory of all requests, to which sealed memory counts.
        regions: Takes the memory.
    """

    def __init__(self, folder: Path, listeners: Listeners, regions: Regions) -> None:
        self._folder, self._listeners, self._regions = folder, listeners, regions
        self._loop = asyncio.get_running_loop()
        self._listening: socket.socket | None = None
        self._clients: dict[socket.socket, _Client | asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Listen from now on.

        Raises:
            DeviceError: The socket cannot be made.
        """
        try:
            self._listening = bind_unix(self._folder, MEMORY_FILE, self._listeners.limits)
            self._listening.listen(BACKLOG)
        except OSError as error:
            raise DeviceError(
                f"the model server cannot listen: {error.strerror or error}",
                found_in=str(self._folder / MEMORY_FILE),
                remedy="the folder must be writable",
            ) from error
        self._listening.setblocking(False)
        self._loop.add_reader(self._listening, self._accept, self._listening)

    def stop(self) -> None:
        """Accept nothing more, and forget all memory."""
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            with contextlib.suppress(OSError):
                (self._folder / MEMORY_FILE).unlink()
        for peer in tuple(self._clients):
            self._end(peer)

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            peer, _ = listening.accept()
            peer.setblocking(False)
            self._clients[peer] = self._loop.call_later(REQUEST_S, self._end, peer)
            if len(self._clients) > MAX_CLIENTS:
                self._answer(peer, error_response(HttpError(503, "too many connections")))
                self._end(peer)
            else:
                self._loop.add_reader(peer, self._receive, peer)

    def _receive(self, peer: socket.socket) -> None:
        """Take the memory of a client; end with the client."""
        files: list[int] = []
        try:
            flags = socket.MSG_CMSG_CLOEXEC
            content, files, _, _ = socket.recv_fds(peer, 1, _MOST_FILES, flags)
            if not content or isinstance(self._clients[peer], _Client):
                self._end(peer)
                return
            self._answer(peer, self._adopt(peer, files))
        except HttpError as error:
            self._answer(peer, error_response(error))
            self._end(peer)
        except OSError:
            self._end(peer)
        finally:
            for file in files:
                os.close(file)

    def _adopt(self, peer: socket.socket, files: list[int]) -> Response:
        """Register the memory of a client.

        Raises:
            HttpError: There is no such memory, or no room.
        """
        if len(files) != 1:
            raise HttpError(400, f"a connection passes a single descriptor, not {len(files)}")
        uid = peer_user(peer)
        region = self._regions.adopt(files[0], uid)
        if not self._listeners.budget.take(region.byte_size):
            self._regions.unregister(region.name, uid)
            raise HttpError(429, "requests hold all memory of the server", retry_s=1)
        waiting, self._clients[peer] = self._clients[peer], _Client(uid, region)
        if isinstance(waiting, asyncio.TimerHandle):
            waiting.cancel()
        return Response(200, (msgspec.json.encode(region),))

    def _answer(self, peer: socket.socket, response: Response) -> None:
        content = b"".join((write_head(response, is_kept=True), *response.parts))
        with contextlib.suppress(OSError):  # It fits into the buffer of a new connection.
            peer.send(content)

    def _end(self, peer: socket.socket) -> None:
        client = self._clients.pop(peer, None)
        self._loop.remove_reader(peer)
        peer.close()
        if isinstance(client, _Client):
            self._regions.unregister(client.region.name, client.uid)
            self._listeners.budget.give(client.region.byte_size)
        elif client is not None:
            client.cancel()
