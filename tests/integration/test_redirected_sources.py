"""Sources that redirect: never into a nearer network than their own."""

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from edgepack.agent.config import SourceConfig
from edgepack.agent.transfer.configured import open_source
from edgepack.agent.transfer.source import Piece, Remote, Source, SourceError
from edgepack.web.deadline import Deadline, NetworkError
from edgepack.web.networks import Network, network_of
from tests.simulators.any_answer import AnyAnswer, http_answer

BODY = b"x" * 100
RANGE = f"Content-Range: bytes 0-{len(BODY) - 1}/{len(BODY)}"


@pytest.fixture
def inside() -> Iterator[AnyAnswer]:
    """Start a server that only this machine can reach."""
    server = AnyAnswer(lambda _: http_answer(BODY, "206 Partial Content", RANGE))
    yield server
    server.close()


def moved_to(url: str, host: str = "127.0.0.1") -> AnyAnswer:
    return AnyAnswer(lambda _: http_answer(b"", "307 There", f"Location: {url}"), host)


def read(source: Source, url: str) -> bytes:
    piece = Piece(start=0, size_bytes=len(BODY), sha256="ab" * 32, index=0)
    remote = Remote(url=url, size_bytes=len(BODY), pieces=(piece,))
    return b"".join(chunk.content for chunk in source.read([remote]))


def own_address() -> str:
    """Return an address of this machine other than loopback; "" for none."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # Nothing is sent.
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "[::1]", "169.254.169.254", "localhost"]
)
def test_a_device_source_on_the_internet_leads_into_no_nearer_network(
    host: str, inside: AnyAnswer
) -> None:
    # The proxy plays the Internet: it answers for files.example, and would reach this machine.
    with closing(moved_to(f"http://{host}:{inside.port}/secret")) as proxy:
        source = open_source(SourceConfig(url="http://files.example/{path}", proxy=proxy.url))
        with pytest.raises(SourceError, match=r"is on (this machine|the local link)"):
            read(source, "http://files.example/m")
        assert len(proxy.requests) == 1
    assert inside.requests == []


def test_a_device_source_elsewhere_leads_not_into_this_machine(inside: AnyAnswer) -> None:
    if not (address := own_address()):
        pytest.skip("this machine has no address but those of loopback")
    with closing(moved_to(f"{inside.url}/secret", address)) as server:
        source = open_source(SourceConfig(url=f"{server.url}/{{path}}", proxy="direct"))
        with pytest.raises(SourceError, match="is on this machine"):
            read(source, f"{server.url}/m")
    assert inside.requests == []


def test_a_device_source_on_this_machine_may_lead_to_this_machine(inside: AnyAnswer) -> None:
    with closing(moved_to(f"{inside.url}/there")) as server:
        source = open_source(SourceConfig(url=f"{server.url}/{{path}}", proxy="direct"))
        assert read(source, f"{server.url}/m") == BODY


def test_an_address_in_a_nearer_network_is_not_connected_to(inside: AnyAnswer) -> None:
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(NetworkError, match="on this machine"):
            Deadline().connect(host, inside.port, Network.PRIVATE)
    assert inside.requests == []


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1", Network.THIS_MACHINE),
        ("0.0.0.0", Network.THIS_MACHINE),
        ("::1", Network.THIS_MACHINE),
        ("::", Network.THIS_MACHINE),
        ("::ffff:127.0.0.1", Network.THIS_MACHINE),
        ("64:ff9b::7f00:1", Network.THIS_MACHINE),
        ("2002:7f00:1::", Network.THIS_MACHINE),
        ("169.254.169.254", Network.LINK),
        ("fe80::1%eth0", Network.LINK),
        ("ff02::1", Network.LINK),
        ("224.0.0.1", Network.LINK),
        ("10.0.0.1", Network.PRIVATE),
        ("100.64.0.1", Network.PRIVATE),
        ("fd00::1", Network.PRIVATE),
        ("fec0::1", Network.PRIVATE),
        ("::ffff:10.0.0.1", Network.PRIVATE),
        ("255.255.255.255", Network.PRIVATE),
        ("93.184.215.14", Network.PUBLIC),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", Network.PUBLIC),
    ],
)
def test_each_address_has_its_network(address: str, network: Network) -> None:
    assert network_of(address) is network
