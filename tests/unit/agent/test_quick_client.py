"""Messages that a quick client handles by itself equal paho's; paho handles the rest."""

import random
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import MQTTErrorCode, _ConnectionState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from edgepack.fleet.broker.access import BrokerAccess, open_client

Heard = tuple[bytes, bytes]
ANSWER = b"\x40\x02\x00\x07"


def packet(command: int, body: bytes) -> bytes:
    length, size = b"", len(body)
    while not length or size:
        length += bytes([(size & 0x7F) | (0x80 if size > 0x7F else 0)])
        size >>= 7
    return bytes([command]) + length + body


def published(topic: bytes, payload: bytes, qos: int, properties: bytes = b"\0") -> bytes:
    number = struct.pack("!H", 7) if qos else b""
    name = struct.pack("!H", len(topic)) + topic
    return packet(0x30 | qos << 1, name + number + properties + payload)


class Peer:
    """A client, the broker's end of its connection, and the results of both ways."""

    def __init__(self) -> None:
        own, self.broker = socket.socketpair()
        own.setblocking(False)
        self.broker.setblocking(False)
        self.client = open_client(BrokerAccess(url="mqtt://127.0.0.1:9"), "c")
        self.client._sock = own
        self.client._state = _ConnectionState.MQTT_CS_CONNECTED
        self.quick: list[Heard] = []
        self.slow: list[Heard] = []
        self.client.receiver = lambda topic, payload: self.quick.append((topic, payload))
        self.client.on_message = self._hear

    def _hear(self, _client: object, _userdata: object, message: MQTTMessage) -> None:
        self.slow.append((message.topic.encode(), bytes(message.payload)))

    def send(self, content: bytes) -> MQTTErrorCode:
        self.broker.sendall(content)
        return self.client.loop_read()

    def answers(self) -> bytes:
        self.client.loop_write()
        try:
            return self.broker.recv(100_000)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self.broker.close()
        if self.client._sock is not None:
            self.client._sock.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def test_messages_that_come_together_are_taken_at_once_and_answered_at_once(peer: Peer) -> None:
    peer.send(published(b"a", b"1", 1) + published(b"b", b"", 0) + published(b"c", b"x" * 300, 1))
    assert peer.quick == [(b"a", b"1"), (b"b", b""), (b"c", b"x" * 300)]
    assert peer.answers() == ANSWER * 2
    assert peer.slow == []


def test_messages_may_be_cut_anywhere(peer: Peer) -> None:
    rng = random.Random(5)
    sent = [
        (f"t/{n}".encode(), rng.randbytes(rng.choice((0, 1, 90, 200, 20_000)))) for n in range(60)
    ]
    content = b"".join(published(topic, payload, 1) for topic, payload in sent)
    while content:
        size = rng.choice((1, 2, 3, 50, 5_000))
        peer.send(content[:size])
        content = content[size:]
    assert peer.quick == sent
    assert len(peer.answers()) == 4 * len(sent)


def test_what_has_properties_is_left_to_paho(peer: Peer) -> None:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = ("key", "value")
    said = published(b"a", b"1", 1, properties.pack())  # type: ignore[no-untyped-call]
    peer.send(said + published(b"b", b"2", 1))
    assert (peer.slow, peer.quick) == ([(b"a", b"1")], [(b"b", b"2")])
    answers = peer.answers()
    assert (len(answers), answers[:4], answers[4:]) == (8, ANSWER, ANSWER)


def test_other_packets_are_left_to_paho(peer: Peer) -> None:
    closed: list[Any] = []
    peer.client.on_disconnect = lambda *words: closed.append(words)
    peer.send(b"\xd0\x00")  # a PINGRESP
    peer.send(packet(0xE0, b"\x8e\x00"))  # DISCONNECT: somebody took its client id
    assert len(closed) == 1
    assert "taken over" in str(closed[0][3]).lower()


@pytest.mark.parametrize(
    "content",
    [
        b"\x32\xff\xff\xff\xff\x01",  # a length of more than four bytes
        packet(0x32, b""),
        packet(0x32, b"\x00"),
        packet(0x32, b"\x00\x09a"),  # a topic longer than the packet
        packet(0x36, b"\x00\x01a\x00\x01\x00"),  # QoS 3
    ],
)
def test_what_is_no_mqtt_ends_the_connection_and_nothing_else(peer: Peer, content: bytes) -> None:
    peer.send(content)
    assert (peer.quick, peer.slow) == ([], [])
    assert peer.client._sock is None


def test_a_packet_that_is_announced_too_long_ends_the_connection_before_it_comes(
    peer: Peer,
) -> None:
    peer.client.most_packet_bytes = 1000
    whole = published(b"a/b", bytes(5000), 0)
    assert peer.send(published(b"a/b", bytes(900), 0)) == MQTTErrorCode.MQTT_ERR_SUCCESS
    assert peer.send(whole[:20]) != MQTTErrorCode.MQTT_ERR_SUCCESS
    assert [len(payload) for _, payload in peer.quick] == [900]


def test_what_is_published_in_one_go_is_what_paho_publishes_one_by_one(peer: Peer) -> None:
    payloads = [bytes([length % 256]) * length for length in (0, 1, 100, 127, 128, 20_000, 70_000)]
    info = peer.client.publish_all("a/b", payloads)
    expected = b"".join(published(b"a/b", payload, 0) for payload in payloads)
    got = b""
    while len(got) < len(expected):
        peer.client.loop_write()
        got += peer.broker.recv(100_000)
    assert got == expected
    assert info.is_published()


def test_what_waits_for_the_socket_is_not_written_over_by_what_comes_after_it(peer: Peer) -> None:
    got, expected = b"", b""
    for number in range(40):
        payload = bytes([number]) * 50_000
        expected += published(b"a/b", payload, 0)
        peer.client.publish_all("a/b", [payload])
        peer.client.loop_write()
        if number % 3 == 2:
            got += peer.broker.recv(200_000)
    while len(got) < len(expected):
        peer.client.loop_write()
        got += peer.broker.recv(200_000)
    assert got == expected


def test_a_broker_that_goes_away_is_noticed(peer: Peer) -> None:
    peer.broker.close()
    assert peer.client.loop_read() != MQTTErrorCode.MQTT_ERR_SUCCESS
    assert peer.client._sock is None
