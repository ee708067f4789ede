"""A client of a broker with several nodes, on real sockets: failover to the next node."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edgepack.agent.broker.address import parse_broker_url
from edgepack.errors import DeviceError
from edgepack.web.broker_url import BrokerAddress, read_broker_urls
from edgepack.web.mqtt_client import Way, WebClient
from tests.simulators.ports import free_port


@pytest.fixture
def nodes() -> Iterator[list[socket.socket]]:
    """Open two sockets that accept connections."""
    taking = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    yield taking
    for one in taking:
        one.close()


def address(node: socket.socket) -> BrokerAddress:
    return at_port(node.getsockname()[1])


def at_port(port: int) -> BrokerAddress:
    return BrokerAddress(scheme="mqtt", host="127.0.0.1", port=port)


def roaming(*addresses: BrokerAddress, first: int = 0) -> WebClient:
    client = WebClient(CallbackAPIVersion.VERSION2, "cam-1", protocol=MQTTProtocolVersion.MQTTv5)
    client.reach([Way(address=one) for one in addresses], None, first=first)
    return client


def at(client: WebClient) -> BrokerAddress:
    opened: Any = client.socket()
    assert opened is not None
    return at_port(opened.getpeername()[1])


def test_each_new_connection_goes_to_the_next_node(nodes: list[socket.socket]) -> None:
    one, two = map(address, nodes)
    client = roaming(one, two, first=1)
    client.connect_somewhere()
    reached = [at(client)]
    for _ in range(3):
        client.reconnect()
        reached.append(at(client))
    assert reached == [two, one, two, one]
    assert (client.host, client.port) == (one.host, one.port), (
        "what TLS checks the certificate against"
    )
    client._sock_close()


def test_a_node_that_is_gone_is_passed_over_and_all_gone_is_said(
    nodes: list[socket.socket],
) -> None:
    gone = at_port(free_port())
    client = roaming(gone, address(nodes[0]))
    client.connect_somewhere()
    assert at(client) == address(nodes[0])
    client._sock_close()
    with pytest.raises(ConnectionRefusedError):
        roaming(gone, gone).connect_somewhere()


def test_the_addresses_of_all_nodes_stand_in_one_url() -> None:
    (one,) = read_broker_urls("mqtt://a.example")
    assert (one.host, one.port, one.is_tls) == ("a.example", 1883, False)
    found = read_broker_urls("mqtts://a.example:1,[::1]:2,c.example")
    assert [(one.host, one.port) for one in found] == [
        ("a.example", 1),
        ("::1", 2),
        ("c.example", 8883),
    ]
    assert all(one.is_tls for one in found)
    found = read_broker_urls("wss://a.example,b.example:1/way,there?x=1,2")
    assert [(one.host, one.path) for one in found] == [
        ("a.example", "/way,there?x=1,2"),
        ("b.example", "/way,there?x=1,2"),
    ]


@pytest.mark.parametrize(
    "url",
    ["", "a.example", "http://a", "mqtt://", "mqtt://a,", "mqtt://a,,b", "mqtts://a:x", "mqtt://a:0x1",
     "mqtt://u@a", "mqtt://b,u@a", "mqtt://a:99999",
     "mqtt://a,mqtts://b:1"],
)  # fmt: skip
def test_what_is_no_url_of_a_broker_is_refused_with_one_that_is(url: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_broker_urls(url)
    with pytest.raises(DeviceError, match="is not an address of a broker") as caught:
        parse_broker_url(url)
    assert "two.example.com:8883" in str(caught.value.remedy)
