"""A WebSocket that looks like a socket, for a client of MQTT that knows sockets only (RFC 6455).

The package websockets checks received data; this class only carries its bytes. paho's own WebSocket
answers a ping by a frame that servers must reject (its mask is missing), and keeps as much of a
frame as a server likes to send.
"""

import contextlib
import socket
import ssl
import threading
import time

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from edgepack.text import printable
from edgepack.web.broker_url import BrokerAddress
from edgepack.web.mqtt_client import ViolationError

PIECE_BYTES = 256 * 1024
MAX_FRAME_BYTES = 1024 * 1024
MAX_ANSWERS_BYTES = 256 * 1024
"""Answers to pings that wait for a server which does not read; more end the connection."""
_REASON_LETTERS = 200
_CARRIES = (Opcode.BINARY, Opcode.CONT)


class WebSocketError(ConnectionError):
    """No WebSocket answers there, or the peer closed the WebSocket."""


class WebSocketViolationError(WebSocketError, ViolationError):
    """The peer violates the WebSocket protocol."""


class WebSocket:
    """An open connection; a thread may send while another thread reads.

    Args:
        opened: The connection to the server, TLS included; closed together with this object.
        address: The broker.
        timeout_s: For the whole handshake.

    Raises:
        OSError: The handshake failed (`WebSocketError`); the connection is closed.
    """

    def __init__(
        self, opened: socket.socket | ssl.SSLSocket, address: BrokerAddress, timeout_s: float
    ) -> None:
        self._socket = opened
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = f"{address.scheme}://{host}:{address.port}{address.path}"
        self._protocol = ClientProtocol(
            parse_uri(url), subprotocols=[Subprotocol("mqtt")], max_size=MAX_FRAME_BYTES
        )
        self._read, self._unsent = bytearray(), bytearray()
        self._promised = self._frame_bytes = 0
        self._lock = threading.Lock()
        try:
            self._shake_hands(url, time.monotonic() + timeout_s)
        except BaseException:
            opened.close()
            raise

    def recv(self, most_bytes: int) -> bytes:
        """Return received bytes; b"" if the other side has closed.

        Raises:
            OSError: Nothing is there (`BlockingIOError`, or TLS's own), or the connection broke.
        """
        if not self._read:
            piece = self._socket.recv(PIECE_BYTES)
            if piece:
                self._take(piece)
            if not self._read:
                if self._protocol.close_rcvd:
                    raise self._closed()
                if piece and self._protocol.state is State.OPEN:
                    raise BlockingIOError
        return bytes(self._cut(most_bytes))

    def recv_into(self, room: memoryview) -> int:
        """Read into a buffer; return the number of bytes."""
        came = self.recv(len(room))
        room[: len(came)] = came
        return len(came)

    def send(self, content: bytes | bytearray | memoryview) -> int:
        """Send the content as a single frame; return its length once the last byte is sent.

        Raises:
            OSError: The content is not sent completely (`BlockingIOError`: call again with the same
                content), or the connection broke.
        """
        with self._lock:
            if self._protocol.state is not State.OPEN:
                raise self._closed()
            if not self._promised:
                self._protocol.send_binary(bytes(content))
                self._promised = len(content)
                self._queue()
                self._frame_bytes = len(self._unsent)
            self._flush()
            promised, self._promised, self._frame_bytes = self._promised, 0, 0
        return promised

    def pending(self) -> int:
        """Return bytes that are here already, so that nobody waits for the socket to bring more."""
        inner = self._socket.pending() if isinstance(self._socket, ssl.SSLSocket) else 0
        return len(self._read) + inner

    def close(self) -> None:
        """Close the connection; the farewell was MQTT's."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the socket's file number."""
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        """Set the socket's blocking mode."""
        self._socket.setblocking(flag)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Set an option of the socket."""
        self._socket.setsockopt(level, option, value)

    def _cut(self, most_bytes: int) -> bytearray:
        found = self._read[:most_bytes]
        del self._read[:most_bytes]
        return found

    def _take(self, piece: bytes) -> None:
        """Process received bytes.

        Raises:
            WebSocketViolationError: The server violates the protocol, or sends pings and does not
                read the answers.
        """
        with self._lock:
            try:
                self._protocol.receive_data(piece)
            except (EOFError, WebSocketException) as error:
                raise WebSocketViolationError(f"the WebSocket broke: {error}") from error
            for event in self._protocol.events_received():
                if isinstance(event, Frame) and event.opcode in _CARRIES:
                    self._read += event.data
            # The protocol answers pings; an answer that cannot go now goes with what is sent next.
            self._queue()
            with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                self._flush()
            if len(self._unsent) > self._frame_bytes + MAX_ANSWERS_BYTES:
                raise WebSocketViolationError(
                    "the server sends pings and does not read the answers"
                )
            if violation := self._protocol.parser_exc:
                said = printable(str(violation)[:_REASON_LETTERS])
                raise WebSocketViolationError(f"the server violates the WebSocket protocol: {said}")

    def _closed(self) -> WebSocketError:
        farewell = self._protocol.close_rcvd
        said = f": {printable(str(farewell)[:_REASON_LETTERS])}" if farewell else ""
        return WebSocketError(f"the server closed the WebSocket{said}")

    def _queue(self) -> None:
        self._unsent += b"".join(self._protocol.data_to_send())

    def _flush(self) -> None:
        while self._unsent:
            del self._unsent[: self._socket.send(self._unsent)]

    def _shake_hands(self, url: str, until: float) -> None:
        self._protocol.send_request(self._protocol.connect())
        self._socket.sendall(b"".join(self._protocol.data_to_send()))
        while self._protocol.state is State.CONNECTING and not self._protocol.handshake_exc:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise WebSocketError(f"the server at {url} does not open a WebSocket in time")
            self._socket.settimeout(left_s)
            try:
                piece = self._socket.recv(PIECE_BYTES)
            except ConnectionError:
                piece = b""
            if not piece:
                raise WebSocketError(f"the server at {url} is not a WebSocket: it hangs up")
            self._take(piece)
        error = self._protocol.handshake_exc
        if isinstance(error, InvalidStatus):
            said = f"HTTP status {error.response.status_code}"
            raise WebSocketError(f"the server at {url} opens no WebSocket: {said}") from error
        if error is not None:
            said = printable(str(error)[:_REASON_LETTERS])
            raise WebSocketError(f"the server at {url} is not a WebSocket: {said}") from error
        if self._protocol.subprotocol != "mqtt":
            raise WebSocketError(f"the WebSocket at {url} does not speak MQTT")
