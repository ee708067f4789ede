"""External parties that drip, hang, flood, and close at each byte: every wait ends with an error.

All external parties of edgepack are in a single table. The limits are small here. No test measures
time: a wait without a deadline would last until the test's own timeout.
"""

import base64
import contextlib
import hashlib
import itertools
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgepack.agent.enrolment.asking import ask_for_certificate
from edgepack.agent.enrolment.package import Package
from edgepack.agent.transfer.http_source import HttpSource
from edgepack.agent.transfer.source import Piece, Remote, SourceError
from edgepack.errors import BundleError, DeviceError, FleetError, TransferError, TrustError
from edgepack.fleet.broker.access import BrokerAccess
from edgepack.fleet.broker.link import Link
from edgepack.fleet.database.webhooks import Message
from edgepack.fleet.oidc.fetching import fetch
from edgepack.fleet.webhooks.delivery import Hook, send
from edgepack.fleet.webhooks.sending import make_secret
from edgepack.registry.bundles import pull
from edgepack.registry.client import Registry
from edgepack.registry.reference import read_reference
from edgepack.registry.way import Way
from edgepack.trust import sources
from edgepack.web.deadline import Deadline, DeadlineError, WaitLimits, answer_within
from edgepack.web.http import Web, WebAccess, WebError
from edgepack.web.proxy import ProxyError, open_tunnel, read_proxy
from edgepack.wire import topics
from tests.simulators import hostile_peer
from tests.simulators.any_answer import http_answer
from tests.simulators.hostile_peer import HostilePeer

LIMITS = WaitLimits(connect_s=1, idle_s=0.5, total_s=0.8, least_bytes_per_s=10**9)
LOOPBACK = "127.0.0.1"
BODY = bytes(range(48))
TIMEOUT_S = 120


@dataclass(frozen=True)
class Party:
    """A party and the request to the party.

    Attributes:
        name: For the test's name.
        answer: Its whole honest answer to the first bytes that come.
        ask: Waits for the party at a port, with the small limits.
        errors: Allowed errors.
        step: Distance of the cuts, bytes.
    """

    name: str
    answer: Callable[[bytes], bytes]
    ask: Callable[[int, Path], object]
    errors: tuple[type[Exception], ...]
    step: int = 1


def _json(content: object) -> bytes:
    return http_answer(json.dumps(content).encode())


def _registry(port: int, _: Path) -> None:
    access = WebAccess(proxy="direct", limits=LIMITS)
    reference = read_reference(f"oci://{LOOPBACK}:{port}/m:1")
    with closing(Registry(reference, access=access, http_unsafe=True)) as registry:
        registry.read_manifest("1")


def _challenge(request: bytes) -> bytes:
    """Return a registry's answer with the hostile party as its token server."""
    if request.startswith(b"GET /token"):
        return _json({"token": "abc"})
    host = request.partition(b"Host: ")[2].partition(b"\r\n")[0].decode()
    asks = f'WWW-Authenticate: Bearer realm="http://{host}/token",service="s"'
    return http_answer(b"", "401 Unauthorized", asks)


def _blob(port: int, _: Path) -> None:
    access = WebAccess(proxy="direct", limits=LIMITS)
    reference = read_reference(f"oci://{LOOPBACK}:{port}/m:1")
    with closing(Registry(reference, access=access, http_unsafe=True)) as registry:
        digest = f"sha256:{hashlib.sha256(BODY).hexdigest()}"
        registry.read_blob(digest, len(BODY), lambda _: None)


def _source(port: int, _: Path) -> None:
    piece = Piece(start=0, size_bytes=len(BODY), sha256="ab" * 32, index=0)
    remote = Remote(url=f"http://{LOOPBACK}:{port}/f", size_bytes=len(BODY), pieces=(piece,))
    web = Web(WebAccess(proxy="direct", limits=LIMITS))
    source = HttpSource("it", lambda url, more: web.ask(url, headers=more), web.close, retry_s=())
    if b"".join(chunk.content for chunk in source.read([remote])) != BODY:
        raise SourceError("other bytes, which the download's digests reject")


def _archive(port: int, folder: Path) -> None:
    way = Way(limits=LIMITS)
    pull(f"http://{LOOPBACK}:{port}/m.edgepack", folder / "out", way=way, most_bytes=10_000)


def _webhook(port: int, _: Path) -> None:
    url = f"http://{LOOPBACK}:{port}/"
    hook = Hook(name="w", key="k", url=url, secret=make_secret(), is_unsafe=True)
    send(hook, "t", Message(source="e", id=1, type="rollout", at=1.0, data={}), LIMITS)


def _enrolment(port: int, _: Path) -> None:
    package = Package(
        device="cam-1",
        tenant="t",
        broker="mqtt://broker",
        trusted_keys=(),
        enrol_at=f"http://{LOOPBACK}:{port}",
        token="x",
    )
    ask_for_certificate(package, "request", LIMITS)


def _tunnel(port: int, _: Path) -> None:
    proxy = read_proxy(f"http://{LOOPBACK}:{port}")
    open_tunnel(proxy, "broker.example", 1883, 0.8).close()


def _web_proxy(port: int, _: Path) -> None:
    access = WebAccess(proxy=f"http://{LOOPBACK}:{port}", limits=LIMITS)
    with closing(Web(access)) as web, web.ask("https://files.example/x"):
        pass


def _broker(scheme: str) -> Callable[[int, Path], None]:
    def ask(port: int, _: Path) -> None:
        link = Link(
            BrokerAccess(url=f"{scheme}://{LOOPBACK}:{port}"),
            client_id="controller",
            subscriptions=[],
            trial=topics.desired("t", "controller"),
            on_message=lambda _topic, _payload: None,
            on_connected=lambda: None,
        )
        link._client.connect_timeout = 0.8
        link.open(0.8)
        link.close()

    return ask


def _upgrade(request: bytes) -> bytes:
    key = request.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
    accept = base64.b64encode(
        hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    ).decode()
    lines = ("Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}")
    head = ["HTTP/1.1 101 Switching Protocols", *lines, "Sec-WebSocket-Protocol: mqtt", "", ""]
    return "\r\n".join(head).encode() + b"\x82\x05" + CONNACK


CONNACK = b"\x20\x03\x00\x00\x00"
RANGE = f"Content-Range: bytes 0-{len(BODY) - 1}/{len(BODY)}"
PARTIES = (
    Party("registry", lambda _: _json({}), _registry, (TransferError,)),
    Party("token server", _challenge, _registry, (TransferError,)),
    Party("blob of a registry", lambda _: http_answer(BODY), _blob, (TransferError,)),
    Party(
        "source of chunks",
        lambda _: http_answer(BODY, "206 Partial Content", RANGE),
        _source,
        (SourceError,),
    ),
    Party(
        "archive of a release", lambda _: http_answer(BODY), _archive, (TransferError, BundleError)
    ),
    Party(
        "provider of OpenID Connect",
        lambda _: _json({"issuer": "https://login.example"}),
        lambda port, _: fetch(f"http://{LOOPBACK}:{port}/x", limits=LIMITS),
        (FleetError,),
    ),
    Party(
        "receiver of a webhook",
        lambda _: http_answer(b"", "204 No Content"),
        _webhook,
        (FleetError,),
    ),
    Party(
        "metadata of a repository",
        lambda _: _json({}),
        lambda port, _: sources.HttpSource(f"http://{LOOPBACK}:{port}", LIMITS)("root", 1, 1000),
        (TrustError,),
    ),
    Party("fleet at enrolment", lambda _: _json({"certificate": "x"}), _enrolment, (DeviceError,)),
    Party(
        "proxy in front of a broker",
        lambda _: b"HTTP/1.1 200 Connection established\r\nVia: it\r\n\r\n",
        _tunnel,
        (ProxyError,),
    ),
    Party(
        "proxy in front of a web server",
        lambda _: b"HTTP/1.1 200 Connection established\r\nVia: it\r\n\r\n",
        _web_proxy,
        (WebError,),
    ),
    Party("broker", lambda _: CONNACK, _broker("mqtt"), (TransferError,)),
    Party("broker in a WebSocket", _upgrade, _broker("ws"), (TransferError,), step=17),
)
names = [party.name.replace(" ", "-") for party in PARTIES]


@pytest.fixture
def play() -> Iterator[Callable[..., HostilePeer]]:
    peers: list[HostilePeer] = []

    def start(*words: object) -> HostilePeer:
        peers.append(HostilePeer(*words))  # type: ignore[arg-type]
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("way", hostile_peer.WAYS)
@pytest.mark.parametrize("party", PARTIES, ids=names)
def test_a_party_that_hangs_drips_or_floods_ends_with_a_clear_error(
    party: Party, way: str, play: Callable[..., HostilePeer], tmp_path: Path
) -> None:
    peer = play(party.answer, way)
    with pytest.raises(party.errors) as caught:
        party.ask(peer.port, tmp_path)
    assert peer.asked.wait(60)
    assert str(caught.value).strip()
    assert not (tmp_path / "out").exists()


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("party", PARTIES, ids=names)
def test_a_party_that_closes_at_any_byte_ends_with_a_clear_error(
    party: Party, play: Callable[..., HostilePeer], tmp_path: Path
) -> None:
    peer = play(party.answer, "close")
    size = len(party.answer(b"Host: x\r\n"))
    for cut in range(0, size, party.step):
        peer.cut = cut
        with contextlib.suppress(*party.errors):
            party.ask(peer.port, tmp_path)
        assert not (tmp_path / "out").exists()
    peer.cut = 0
    with pytest.raises(party.errors):
        party.ask(peer.port, tmp_path)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nX: ",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
    ],
)
@pytest.mark.parametrize("filler", [b"x" * 4096, b"X: y\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_headers_and_trailers_without_an_end_are_left(
    start: bytes, filler: bytes, play: Callable[..., HostilePeer]
) -> None:
    peer = play(lambda _: start + start, "flood", filler)
    with pytest.raises(FleetError):
        fetch(f"{peer.url}/x", limits=LIMITS)


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("ask", [_archive, _blob])
def test_a_source_that_sends_one_byte_of_each_answer_is_left(
    ask: Callable[[int, Path], object], play: Callable[..., HostilePeer], tmp_path: Path
) -> None:
    def answer(request: bytes) -> bytes:
        at = int(request.partition(b"Range: bytes=")[2].partition(b"-")[0] or 0)
        size = b"Content-Length: %d" % (len(BODY) - at)
        ranged = b"Content-Range: bytes %d-%d/%d\r\n" % (at, len(BODY) - 1, len(BODY))
        begin = b"206 Partial Content\r\n" + ranged if at else b"200 OK\r\n"
        return b"HTTP/1.1 " + begin + size + b"\r\n\r\n" + BODY[at : at + 1]

    peer = play(answer, "late")
    with pytest.raises(TransferError, match="too long"):
        ask(peer.port, tmp_path)
    assert not (tmp_path / "out").exists()


def test_time_between_waits_counts_while_an_answer_is_read() -> None:
    now = itertools.count()
    reading, idle = (Deadline(answer_within(5.0), lambda: float(next(now))) for _ in range(2))

    def wait(waiting: Deadline) -> None:
        for _ in range(4):
            with waiting.waiting():
                pass

    wait(idle)
    with reading.counting(), pytest.raises(DeadlineError):
        wait(reading)


@pytest.mark.timeout(TIMEOUT_S)
def test_a_party_that_reads_nothing_ends_an_upload(play: Callable[..., HostilePeer]) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        web = Web(WebAccess(proxy="direct", limits=LIMITS))
        url = f"http://{LOOPBACK}:{listener.getsockname()[1]}/"
        with closing(web), pytest.raises(WebError), web.ask(url, method="PUT", body=b"x" * 10**8):
            pass
