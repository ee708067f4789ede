"""A client's connection: reads requests one after the other, and writes their responses.

An idle connection holds no buffer: all connections read heads into one buffer of the server. The
body of a request has memory of its own, which counts against the budget as bytes arrive.
"""

import asyncio
import fcntl
import logging
import socket
import termios
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from edgepack.agent.config import ServerConfig
from edgepack.agent.inference_protocol.messages import ErrorAnswer
from edgepack.agent.runtime.heap import LARGE_BYTES
from edgepack.agent.server.blocks import Blocks
from edgepack.agent.server.budget import Budget
from edgepack.agent.server.http_messages import (
    MAX_HEAD_BYTES,
    ChunkedBody,
    Head,
    HttpError,
    Response,
    read_head,
    write_head,
)
from edgepack.agent.server.peers import find_peer_uid
from edgepack.agent.state.unix_socket import peer_user

log = logging.getLogger(__name__)

IDLE_S = 120.0
"""How long a connection may wait for a request, seconds."""
REQUEST_S = 30.0
"""How long a client may take to send a request, and again to begin to read its response."""
SLOWEST_BYTES_PER_S = 64 * 1024
"""A client that reads a response more slowly stalls."""
_STEP_BYTES = SLOWEST_BYTES_PER_S // 2
"""Read between two looks."""
LINGER_S = 3.0
"""How long the rest of a rejected request is read and dropped: its client must get the error."""
MOST_UNREAD_BYTES = 256 * 1024
"""Parts of a stream that its client has not read, at most."""
FREE_BYTES = 64 * 1024
"""Bytes of a request that need no budget: connections have a number."""
PAGE_BYTES = 2 * 1024 * 1024
"""The kernel may give a large block in pages of this size."""
_END = b"\r\n\r\n"


class Request(NamedTuple):
    """Request with its body.

    Attributes:
        head: Its head.
        body: Content, which nothing else changes.
        find_peer: Returns the user of the client; None if not known.
        is_web: Whether a page of a browser could have sent the request: it came by TCP.
    """

    head: Head
    body: memoryview
    find_peer: Callable[[], int | None]
    is_web: bool


class Exchange(Protocol):
    """Answer to a single request."""

    def respond(self, response: Response) -> None:
        """Send the response; call once, in the event loop's thread."""

    def on_lost(self, act: Callable[[], object], *, is_long: bool = False) -> None:
        """Call a function if the client goes before the response is sent.

        Args:
            act: The function.
            is_long: Whether a client that sends no more counts as gone.
        """


Handler = Callable[[Request, Exchange], None]
"""Handles a request in the event loop's thread; raises `HttpError` for an error."""


class Owner(Protocol):
    """Owner of all connections.

    Attributes:
        limits: Settings.
        buffer: Where bytes of every connection arrive, one after the other.
        blocks: Memory of large requests.
    """

    limits: ServerConfig
    buffer: memoryview
    blocks: Blocks

    def admit(self, connection: "Connection") -> bool:
        """Register a connection; return whether there is room."""

    def dismiss(self, connection: "Connection") -> None:
        """Forget a connection that ended."""

    def end_stalled(self, asking: "Connection") -> bool:
        """End the longest stalled connection with memory; return whether there was one."""

    def admit_response(self, length: int, asking: "Connection") -> None:
        """Reserve the memory of a response.

        Raises:
            HttpError: Others hold the memory.
        """


def _check_coding(head: Head) -> None:
    """Check that a body is sent as it is.

    Raises:
        HttpError: The body is compressed.
    """
    coding = head.fields.get(b"content-encoding", b"").decode("latin-1").lower()
    if coding not in ("", "identity"):
        raise HttpError(415, f"the body is compressed, as by {coding[:100]!a}: send it plain")


def error_response(error: HttpError) -> Response:
    """Return an error in the protocol's form."""
    fields = f"Retry-After: {error.retry_s}\r\n" if error.retry_s else ""
    return Response(error.status, (msgspec.json.encode(ErrorAnswer(error.problem)),), fields=fields)


class Connection(asyncio.BufferedProtocol):
    """Protocol of a connection for asyncio.

    Args:
        server: Owner of all connections.
        handle: Handles requests.
        budget: Budget of memory.
    """

    def __init__(self, server: Owner, handle: Handler, budget: Budget) -> None:
        self._server, self._handle, self._budget = server, handle, budget
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_web = False
        self._peer_uid: int | None = None
        self._head: Head | None = None
        self._pending = b""
        self._body: memoryview | None = None
        self._received = self._unread = 0
        self._chunks: ChunkedBody | None = None
        self._charged = 0
        self._is_busy = self._is_writing = self._is_ending = self._is_paused = False
        self._act_on_loss: Callable[[], object] | None = None
        self._is_long = False
        self.since = self._loop.time()
        """When the connection began to wait for what it waits for, seconds of the loop's clock."""
        self.limit_s = IDLE_S
        self.still = 0
        """Looks in a row at which the client had neither sent a part nor read much."""
        self._has_moved = True

    @property
    def charged(self) -> int:
        """Bytes of the budget that the connection holds."""
        return self._charged

    @property
    def is_idle(self) -> bool:
        """True if no request has begun, and no byte of a request waits in the kernel."""
        if self._is_busy or self._is_writing or self._is_reading or self._transport is None:
            return False
        file = self._transport.get_extra_info("socket").fileno()
        return file < 0 or not any(fcntl.ioctl(file, termios.FIONREAD, bytes(4)))

    @property
    def is_stalled(self) -> bool:
        """True if the connection waits for its client within a request."""
        return not self._is_busy and (self._is_reading or self._is_writing)

    @property
    def _is_reading(self) -> bool:
        return self._head is not None or bool(self._pending)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer: socket.socket = transport.get_extra_info("socket")
        if peer.family == socket.AF_UNIX:
            self._peer_uid = peer_user(peer)
        else:
            self._is_web = True
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._server.admit(self):
            self._reject(HttpError(503, "too many connections", retry_s=1))

    def connection_lost(self, error: Exception | None) -> None:
        """Release all that the connection holds."""
        self._server.dismiss(self)
        if not self._is_busy:  # A running inference still holds the memory of the request.
            self._release()
        self._body, self._chunks, self._pending, self._transport = None, None, b"", None
        self._note_loss()

    def _note_loss(self) -> None:
        act, self._act_on_loss = self._act_on_loss, None
        if act is not None:
            act()

    def eof_received(self) -> bool:
        """End after the response; a client that sends no more may still read."""
        self._is_ending = True
        if self._is_long:
            self._note_loss()
        return self._is_busy or self._is_writing

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: the body of a request, or the server's buffer."""
        if self._body is not None:
            return self._body[self._received :]
        return self._server.buffer

    def buffer_updated(self, number: int) -> None:
        """Handle received bytes."""
        if self._is_ending:
            return
        try:
            if self._body is not None:
                self._extend(number)
            elif self._chunks is not None and not self._is_busy:
                self._decode(bytes(self._server.buffer[:number]))
            else:
                if not self._is_busy and not self._pending:
                    self._begin(self._loop.time())
                self._pending += self._server.buffer[:number]
                self._read_requests()
        except HttpError as error:
            self._reject(error)

    def pause_writing(self) -> None:
        """Wait until the client has read what was sent."""
        self._is_writing = True
        self._begin(self._loop.time())

    def resume_writing(self) -> None:
        """Continue with the next request, or with the stream."""
        self._is_writing = False
        if self._is_busy:
            return
        self._release()
        self._wait_for_request()

    def look(self, now: float) -> None:
        """End the connection if its client took too long."""
        if self._is_writing and self._transport is not None:
            left = self._transport.get_write_buffer_size()
            self._has_moved |= self._unread - left >= _STEP_BYTES
            self._unread = left
        self.still = 0 if self._has_moved else self.still + 1
        self._has_moved = False
        if self._is_busy or now - self.since < self.limit_s:
            return
        if self._is_reading and not self._is_writing and not self._is_ending:
            self._reject(HttpError(408, f"the request did not arrive within {REQUEST_S:g} s"))
        else:
            self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def drop(self) -> None:
        """End the connection at once, and free its memory before the loop's next turn."""
        self._body, self._chunks, self._pending = None, None, b""
        self._release()
        self.abort()

    def end(self) -> None:
        """End the connection once its running request is answered."""
        self._is_ending = True
        if not (self._is_busy or self._is_writing) and self._transport is not None:
            self._transport.close()

    def respond(self, response: Response) -> None:
        """Send the response to the running request."""
        if response.stream is not None and self._transport is not None:
            self._is_ending = True
            # Else the kernel keeps megabytes for a client that does not read.
            peer: socket.socket = self._transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_UNREAD_BYTES // 2)
            # So that a client tells a text that was cut: a server that dies writes no last chunk.
            is_chunked = self._head is None or self._head.is_newer
            self._transport.write(write_head(response, is_kept=False, is_chunked=is_chunked))
            response.stream(partial(self._send_part, is_chunked=is_chunked))
            return
        self._act_on_loss, self._is_long = None, False
        self._is_busy = False
        if self._transport is None:
            self._release()
            return
        head, self._head = self._head, None
        if head is None or not head.is_kept:
            self._is_ending = True
        if head is not None and head.method == "HEAD":
            response = response._replace(parts=())
        self._release()
        self._send(response)
        if not self._is_writing:
            self._wait_for_request()

    def _send_part(self, part: bytes, *, is_chunked: bool) -> None:
        """Send a part of a stream; end the stream at an empty part."""
        transport = self._transport
        if not part:
            self._act_on_loss, self._is_long, self._is_busy = None, False, False
            self._release()
            if transport is not None:
                if is_chunked and not transport.is_closing():
                    transport.write(b"0\r\n\r\n")
                transport.close()
        elif transport is not None and not transport.is_closing():  # asyncio warns of each write.
            transport.write(b"%x\r\n%b\r\n" % (len(part), part) if is_chunked else part)
            if transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
                self.abort()

    def on_lost(self, act: Callable[[], object], *, is_long: bool = False) -> None:
        """Call a function if the client goes before the response is sent."""
        self._act_on_loss, self._is_long = act, is_long

    def _find_peer(self) -> int | None:
        """Return the user of the client; None if not known."""
        if self._peer_uid is None and self._transport is not None:
            ends = (self._transport.get_extra_info(name) for name in ("peername", "sockname"))
            self._peer_uid = find_peer_uid(*ends)
        return self._peer_uid

    def _begin(self, now: float) -> None:
        self.since, self.still, self._has_moved = now, 0, True
        self.limit_s = REQUEST_S

    def _wait_for_request(self) -> None:
        self.since, self.limit_s = self._loop.time(), IDLE_S
        if self._transport is None or self._is_ending:
            return
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        if self._pending:
            self._begin(self.since)
            self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Read the next request of a client that sent several at once."""
        try:
            if self._transport is not None and not self._is_ending:
                self._read_requests()
        except HttpError as error:
            self._reject(error)

    def _read_requests(self) -> None:
        """Read the head of the next request, and handle the request once it is complete."""
        if self._is_busy or self._is_writing:
            if len(self._pending) > MAX_HEAD_BYTES and not self._is_paused and self._transport:
                self._is_paused = True
                self._transport.pause_reading()
            return
        end = self._pending.find(_END, 0, MAX_HEAD_BYTES)
        if end < 0:
            if len(self._pending) > MAX_HEAD_BYTES:
                raise HttpError(431, f"the head has more than {MAX_HEAD_BYTES} bytes")
            return
        head = self._head = read_head(self._pending[:end])
        rest = self._pending[end + len(_END) :]
        if head.length > self._server.limits.body_bytes:
            raise HttpError(413, f"the body has more than {self._server.limits.body_bytes} bytes")
        if 0 <= head.length <= len(rest):
            self._pending = rest[head.length :]
            self._dispatch(memoryview(rest)[: head.length])
            return
        self._pending = b""
        if head.fields.get(b"expect", b"").lower() == b"100-continue" and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if head.length < 0:
            self._chunks = ChunkedBody(self._server.limits.body_bytes)
            self._decode(rest)
            return
        try:
            self._body = self._server.blocks.take(head.length)
        except MemoryError as error:
            raise HttpError(429, "there is no memory for the request", retry_s=1) from error
        self._received = 0
        self._body[: len(rest)] = rest
        self._extend(len(rest))

    def _extend(self, number: int) -> None:
        """Count received bytes of a body in its own memory."""
        assert self._body is not None
        self._received += number
        self._has_moved = True
        length = len(self._body)
        pages = -(-self._received // PAGE_BYTES) * PAGE_BYTES if length >= LARGE_BYTES else 0
        self._charge(min(length, max(self._received, pages)))
        if self._received == len(self._body):
            body, self._body = self._body, None
            self._dispatch(body)

    def _decode(self, content: bytes) -> None:
        """Decode received bytes of a chunked body."""
        assert self._chunks is not None
        self._has_moved = True
        rest = self._chunks.feed(content)
        self._charge(len(self._chunks.body))
        if rest is not None:
            body, self._chunks, self._pending = bytes(self._chunks.body), None, rest
            self._dispatch(memoryview(body))

    def _charge(self, total: int) -> None:
        """Reserve the memory of a request; make the clients that stalled longest give theirs.

        Raises:
            HttpError: Other requests hold the budget.
        """
        due = total - FREE_BYTES - self._charged
        if due <= 0:
            return
        while not self._budget.take(due):
            if not self._server.end_stalled(self):
                raise HttpError(429, "requests hold all memory of the server", retry_s=1)
        self._charged += due

    def _release(self) -> None:
        self._budget.give(self._charged)
        self._charged = 0

    def _dispatch(self, body: memoryview) -> None:
        assert self._head is not None
        self._is_busy = True
        try:
            _check_coding(self._head)
            self._handle(Request(self._head, body, self._find_peer, self._is_web), self)
        except HttpError as error:
            self.respond(error_response(error))
        except Exception:  # the outermost loop of what peers can cause
            log.exception("a request fails because of a fault")
            self.respond(error_response(HttpError(500, "fault in edgepack: see the server's log")))

    def _reject(self, error: HttpError) -> None:
        """Answer a request that cannot be read to its end, and end the connection."""
        self._is_ending = True
        self._body, self._chunks, self._pending = None, None, b""
        self._is_busy, self._head = False, None
        self._release()
        self.since, self.limit_s = self._loop.time(), LINGER_S
        self._send(error_response(error), lingers=True)

    def _send(self, response: Response, *, lingers: bool = False) -> None:
        transport = self._transport
        if transport is None:
            return
        head = write_head(response, is_kept=not self._is_ending)
        length = sum(map(len, response.parts))
        if length <= FREE_BYTES:
            transport.write(b"".join((head, *response.parts)))
        else:
            try:
                self._server.admit_response(length, self)
            except HttpError as error:
                self._send(error_response(error))
                return
            self._charged += length
            transport.write(head)
            for part in response.parts:
                transport.write(part)
            if self._is_writing:
                self.limit_s = REQUEST_S + length / SLOWEST_BYTES_PER_S
            else:
                self._release()
        if lingers:
            transport.write_eof()
        elif self._is_ending:
            transport.close()
