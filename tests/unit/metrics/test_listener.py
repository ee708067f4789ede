"""A device's `/metrics`: on loopback or a unix socket, for peers that may do anything."""

import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.metrics import listener as listening
from edgepack.metrics.listener import MAX_CONNECTIONS, MetricsListener
from edgepack.metrics.settings import Address, read_address
from tests.simulators.waiting import wait_until

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
Start = Callable[[Address], MetricsListener]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[MetricsListener] = []

    def begin(address: Address) -> MetricsListener:
        running.append(MetricsListener(address, lambda form: f"text as {form}\n".encode()))
        running[-1].start()
        return running[-1]

    yield begin
    for one in running:
        one.stop()


def ask(peer: socket.socket, request: bytes) -> tuple[str, str]:
    """Return status line and body."""
    peer.settimeout(400)
    peer.sendall(request)
    content = b""
    while piece := peer.recv(65536):
        content += piece
    head, _, body = content.decode().partition("\r\n\r\n")
    return head.partition("\r\n")[0], body


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 400)


def test_requests_are_answered_on_loopback(start: Start) -> None:
    port = start(read_address("0")).port
    for request, status, body in (
        (GET + b"\r\n", "HTTP/1.1 200 OK", "text as application/openmetrics-text"),
        (GET + b"ACCEPT: text/plain\r\n\r\n", "HTTP/1.1 200 OK", "text as text/plain"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK", "text as application"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed", "GET only"),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found", "/metrics"),
        (b"\r\n\r\n", "HTTP/1.1 404 Not Found", "/metrics"),
        (b"\xff\x00" * 50 + b"\r\n\r\n", "HTTP/1.1 404 Not Found", "/metrics"),
    ):
        with connect(port) as peer:
            found = ask(peer, request)
        assert found[0] == status
        assert found[1].startswith(body) or body in found[1]


def test_a_socket_of_a_killed_agent_is_replaced_and_a_file_is_not(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    running = start(read_address(f"unix:{path}"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
        assert ask(peer, GET + b"\r\n")[0] == "HTTP/1.1 200 OK"
    running.stop()
    assert not path.exists()
    path.write_text("a file of somebody")
    assert "in use" in start(read_address(f"unix:{path}")).trouble
    assert path.read_text() == "a file of somebody"


def test_an_address_in_use_is_reported_and_taken_once_it_is_free(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "RETRY_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        running = start(Address(port=port))
        assert "in use" in running.trouble
    wait_until(lambda: not running.trouble, "the address is free")
    with connect(port) as peer:
        assert ask(peer, GET + b"\r\n")[0] == "HTTP/1.1 200 OK"


def test_further_connections_are_closed_while_all_slots_are_taken(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "REQUEST_S", 600.0)
    port = start(Address()).port
    silent = [connect(port) for _ in range(MAX_CONNECTIONS)]
    assert not is_answered(port)
    for one in silent:
        one.close()
    wait_until(lambda: is_answered(port), "a slot is free")


def test_silent_and_endless_peers_end(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "REQUEST_S", 0.1)
    port = start(Address()).port
    with connect(port) as silent:
        assert silent.recv(1) == b""
    with connect(port) as endless, pytest.raises(OSError, match=r"reset|Broken pipe"):
        send_endlessly(endless)
    monkeypatch.setattr(listening, "REQUEST_S", 600.0)
    wait_until(lambda: is_answered(port), "a slot is free")


def send_endlessly(peer: socket.socket) -> None:
    while True:
        peer.sendall(b"x" * 4096)
        time.sleep(0.001)


def is_answered(port: int) -> bool:
    with connect(port) as peer:
        try:
            return ask(peer, GET + b"\r\n")[0] == "HTTP/1.1 200 OK"
        except OSError:
            return False


@pytest.mark.parametrize("text", ["", "x", "unix:", "1.2.3.4:", "a:70000", ":-1"])
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no port, address or unix socket"):
        read_address(text)


def test_a_port_alone_is_on_loopback() -> None:
    assert read_address("9464") == read_address(":9464") == Address(port=9464)
    assert read_address("[::1]:9464") == Address(host="::1", port=9464)
    assert read_address("unix:run/m.sock") == Address(path="run/m.sock")
