"""A WebSocket as a socket: reads, writes, and the power of a hostile server."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from edgepack.web.broker_url import read_broker_url
from edgepack.web.websocket import MAX_FRAME_BYTES, WebSocket, WebSocketError

ADDRESS = read_broker_url("ws://broker.example/mqtt")


class Far:
    """The other end, driven by hand."""

    def __init__(self, opened: socket.socket) -> None:
        self.socket = opened
        self.protocol = ServerProtocol(subprotocols=["mqtt"])  # type: ignore[list-item]

    def shake_hands(self) -> None:
        while self.protocol.state is State.CONNECTING:
            self.protocol.receive_data(self.socket.recv(4096))
            for request in self.protocol.events_received():
                self.protocol.send_response(self.protocol.accept(request))  # type: ignore[arg-type]
        self.flush()

    def flush(self) -> None:
        self.socket.sendall(b"".join(self.protocol.data_to_send()))

    def frames(self) -> list[Frame]:
        self.protocol.receive_data(self.socket.recv(1 << 20))
        return [event for event in self.protocol.events_received() if isinstance(event, Frame)]


@pytest.fixture
def pair() -> Iterator[tuple[WebSocket, Far]]:
    near, far_socket = socket.socketpair()
    far = Far(far_socket)
    thread = threading.Thread(target=far.shake_hands)
    thread.start()
    opened = WebSocket(near, ADDRESS, 5)
    thread.join()
    opened.setblocking(False)
    yield opened, far
    opened.close()
    far_socket.close()


def test_frames_are_read_as_one_stream_however_they_were_cut(pair: tuple[WebSocket, Far]) -> None:
    near, far = pair
    far.protocol.send_binary(b"abc", fin=False)
    far.protocol.send_continuation(b"defg", fin=True)
    far.protocol.send_binary(b"h")
    far.flush()
    assert near.recv(2) == b"ab"
    assert near.pending() == 6
    room = memoryview(bytearray(3))
    assert near.recv_into(room) == 3
    assert bytes(room) == b"cde"
    assert near.recv(100) == b"fgh"
    assert near.pending() == 0
    with pytest.raises(BlockingIOError):
        near.recv(1)


def test_a_ping_is_answered_by_a_masked_pong(pair: tuple[WebSocket, Far]) -> None:
    near, far = pair
    far.protocol.send_ping(b"there?")
    far.flush()
    with pytest.raises(BlockingIOError):
        near.recv(1)
    # A server's protocol refuses what a client does not mask.
    assert [(frame.opcode, frame.data) for frame in far.frames()] == [(Opcode.PONG, b"there?")]


def test_what_does_not_fit_is_promised_and_said_to_be_sent_once_it_is(
    pair: tuple[WebSocket, Far],
) -> None:
    near, far = pair
    content = bytes(range(256)) * 4096
    with pytest.raises(BlockingIOError):
        near.send(content)
    read, sent = b"", 0
    while not sent:
        read += b"".join(frame.data for frame in far.frames())
        try:
            sent = near.send(content)
        except BlockingIOError:
            continue
    while len(read) < len(content):
        read += b"".join(frame.data for frame in far.frames())
    assert sent == len(content)
    assert read == content


@pytest.mark.parametrize(
    "frame",
    [
        b"\x82\x7f" + (MAX_FRAME_BYTES + 1).to_bytes(8, "big"),  # too long
        b"\x82\x7f" + (2**62).to_bytes(8, "big"),
        b"\xf2\x00",  # bits that mean nothing
        b"\x82\x80\0\0\0\0",  # masked by a server
        b"\x88\x02\x03\xe8",  # a farewell
    ],
)
def test_a_frame_that_must_not_be_ends_the_connection(
    frame: bytes, pair: tuple[WebSocket, Far]
) -> None:
    near, far = pair
    far.socket.sendall(frame)
    with pytest.raises(WebSocketError, match=r"violates the WebSocket protocol|closed"):
        near.recv(100)


def test_after_a_close_frame_in_one_segment_with_data_nothing_is_sent(
    pair: tuple[WebSocket, Far],
) -> None:
    near, far = pair
    far.protocol.send_binary(b"the last word")
    far.protocol.send_close(1000)
    far.flush()
    assert near.recv(100) == b"the last word"
    with pytest.raises(WebSocketError, match="the server closed the WebSocket: 1000"):
        near.send(b"an answer")


def read_on(near: WebSocket) -> None:
    for _ in range(10_000):
        with contextlib.suppress(BlockingIOError):
            near.recv(1)


def test_a_flood_of_pings_that_is_never_read_ends_the_connection(
    pair: tuple[WebSocket, Far],
) -> None:
    near, far = pair
    flood = b"\x89\x00" * 100_000

    def pings() -> None:
        with contextlib.suppress(OSError):
            while True:
                far.socket.sendall(flood)

    thread = threading.Thread(target=pings)
    thread.start()
    with pytest.raises(WebSocketError, match="sends pings and does not read"):
        read_on(near)
    near.close()
    thread.join()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0\x1b[2J\r\n\r\n", "is not a WebSocket"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "HTTP status 404"),
        (b"HTTP/1.1 101 Fine\r\nUpgrade: websocket\r\n\r\n", "is not a WebSocket"),
        (b"HTTP/1.1 200 " + b"x" * 100_000, "is not a WebSocket"),
        (b"", "hangs up"),
    ],
)
def test_what_is_no_websocket_is_said_in_one_harmless_line(answer: bytes, said: str) -> None:
    near, far = socket.socketpair()

    def answered() -> None:
        far.recv(4096)
        far.sendall(answer)
        far.close()

    thread = threading.Thread(target=answered)
    thread.start()
    with pytest.raises(WebSocketError) as caught:
        WebSocket(near, ADDRESS, 5)
    thread.join()
    assert said in str(caught.value)
    assert str(caught.value).isprintable()
    assert near.fileno() == -1


def test_a_handshake_that_never_ends_is_given_up() -> None:
    near, far = socket.socketpair()
    with pytest.raises(OSError, match=r"in time|timed out"):
        WebSocket(near, ADDRESS, 0.2)
    far.close()
