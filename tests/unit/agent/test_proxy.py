"""Selection of a proxy, and the power of a hostile proxy."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edgepack.web.broker_url import read_broker_url
from edgepack.web.proxy import MAX_ANSWER_BYTES, Proxy, ProxyError, find_proxy, open_tunnel


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("scheme", "host", "title"),
    [
        ("wss", "broker.example", "secure:3128"),
        ("https", "files.example", "secure:3128"),
        ("ws", "broker.example", "plain:8080"),
        ("mqtts", "broker.example", None),
        ("mqtt", "broker.example", None),
        ("wss", "broker.inside.example", None),
    ],
)
def test_the_environment_speaks_for_the_web_alone(
    scheme: str, host: str, title: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://secure")
    monkeypatch.setenv("http_proxy", "plain:8080")
    monkeypatch.setenv("NO_PROXY", "inside.example,10.0.0.1")
    found = find_proxy(scheme, host)
    assert (found.title if found else None) == title
    assert find_proxy(scheme, host, "direct") is None
    named = find_proxy(scheme, host, "http://u%40x:p@[::1]:99")
    assert named == Proxy(host="::1", port=99, credentials="u@x:p")
    assert named.url == "http://[::1]:99"


@pytest.mark.parametrize(
    "url",
    ["socks5://u:secret@proxy:1", "https://proxy", "http://", "http://proxy:99999", "http://["],
)
def test_what_is_no_http_proxy_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="HTTP proxy") as caught:
        find_proxy("wss", "broker.example", url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("mqtt://b", ("b", 1883, "")),
        ("mqtts://b/ignored", ("b", 8883, "")),
        ("ws://b", ("b", 80, "/mqtt")),
        ("wss://[::1]:8443/ws?token=1", ("::1", 8443, "/ws?token=1")),
    ],
)
def test_a_broker_is_where_its_url_says(url: str, found: tuple[str, int, str]) -> None:
    address = read_broker_url(url)
    assert (address.host, address.port, address.path) == found


@pytest.mark.parametrize(
    "url",
    ["", "wss://", "http://b", "wss://user:secret@b", "ws://b:0x1", "ws://b/a b", "ws://b/\u00e4"],
)
def test_what_is_no_url_of_a_broker_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        read_broker_url(url)
    assert "secret" not in str(caught.value)


@contextmanager
def answering(answer: bytes, *, drip_s: float = 0.0) -> Iterator[Proxy]:
    """Start a server with this answer to any client, byte by byte with a drip."""
    ended = threading.Event()

    def serve() -> None:
        opened, _ = listener.accept()
        with opened:
            opened.settimeout(60)
            try:
                opened.recv(4096)
                pieces = [answer[i : i + 1] for i in range(len(answer))] if drip_s else [answer]
                for piece in pieces:
                    opened.sendall(piece)
                    if ended.wait(drip_s):
                        return
                ended.wait(60)
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield Proxy(host="127.0.0.1", port=listener.getsockname()[1])
        ended.set()
        thread.join()


def test_headers_that_come_late_belong_to_the_proxys_answer() -> None:
    with answering(b"HTTP/1.1 200 Fine\r\nVia: x\r\n\r\n", drip_s=0.005) as proxy:
        open_tunnel(proxy, "broker.example", 443, 60).close()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"\x1b[2J\r\n\r\n", "is not an HTTP proxy"),
        (b"HTTP/1.1 502 \x1b[2Jgone\r\n\r\n", r"broker.example:443: HTTP/1.1 502 \x1b[2Jgone"),
        (b"HTTP/1.1 407 Please\r\n\r\n", "requires a user name"),
        (b"HTTP/1.1 200 " + b"x" * 2 * MAX_ANSWER_BYTES, "is not an HTTP proxy"),
        (b"HTTP/1.1 2\r\n\r\n", "opens no way"),
    ],
)
def test_a_hostile_proxy_is_told_of_in_one_harmless_line(answer: bytes, said: str) -> None:
    with answering(answer) as proxy, pytest.raises(ProxyError) as caught:
        open_tunnel(proxy, "broker.example", 443, 60)
    assert said in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_proxy_that_drips_is_given_up_in_time() -> None:
    answer = b"HTTP/1.1 200" + b"x" * 10000
    with (
        answering(answer, drip_s=0.1) as proxy,
        pytest.raises(ProxyError, match="gives no answer"),
    ):
        open_tunnel(proxy, "broker.example", 443, 0.4)
