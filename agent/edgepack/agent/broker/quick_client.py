"""A paho client that takes in many messages for a twentieth of the processor time, and chunks, too.

paho reads a message by three calls of the socket, makes unused properties, and answers each message
by a separate packet: more than half of the controller's cost of a rollout. Here the socket is read
in pieces, messages without properties go straight to the receiver, and a single packet answers a
whole piece. Chunks go out many at a time. Each byte is copied once, from the piece into the
receiver's buffer. Everything else is left to paho. This class uses internals of paho 2.2;
`tests/unit/agent/test_quick_client.py` fails if the internals change.
"""

import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import paho.mqtt.client as mqtt
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.exception import MalformedPacket

from edgepack.web.mqtt_client import ViolationError, WebClient

PIECE_BYTES = 256 * 1024
_PUBLISH, _PUBACK = 0x30, 0x40
_MOST_LENGTH_BYTES = 4
_AT_LEAST_ONCE = 1
_rooms = threading.local()

Content = bytes | bytearray | memoryview
Receiver = Callable[[bytes, bytes], None]
"""Gets topic (not decoded) and payload; must not raise."""


class QuickClient(WebClient):
    """Client that forwards published messages to `receiver` once `receiver` is set; MQTT 5 only.

    Attributes:
        most_packet_bytes: A longer packet ends the connection before the packet is read: CONNECT
            forbids longer packets, but a peer that ignores the limit would fill the memory.
        transport_error: Error that ended the current connection; "" for none.
        is_violated: Whether that error is a violation of a protocol by the broker.
    """

    receiver: Receiver | None = None
    most_packet_bytes: int = 256 * 1024 * 1024

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._begun = bytearray()
        self.transport_error, self.is_violated = "", False
        self._going: deque[tuple[mqtt.MQTTMessageInfo, bytearray]] = deque()

    def loop_start(self) -> MQTTErrorCode:
        """Start the thread; close the sockets that an ended thread left open."""
        if self._thread is None:
            self._reset_sockets(sockpair_only=True)
        return super().loop_start()

    def publish_all(self, topic: str, payloads: Sequence[Content]) -> mqtt.MQTTMessageInfo:
        """Publish messages at QoS 0 at once; the returned info belongs to the last message."""
        name = topic.encode()
        parts: list[Content] = []
        for payload in payloads:
            parts += (_publish_header(name, len(payload)), payload)
        info = mqtt.MQTTMessageInfo(self._mid_generate())
        info.rc = MQTTErrorCode.MQTT_ERR_NO_CONN
        if self._sock is not None:
            packets = cast(bytearray, self._put_together(parts, info))
            info.rc = self._packet_queue(_PUBLISH, packets, info.mid, 0, info)
        return info

    def _put_together(self, parts: Sequence[Content], info: mqtt.MQTTMessageInfo) -> memoryview:
        """Concatenate the parts in the memory of earlier, sent messages: fresh memory costs more
        than all other steps.
        """
        length = sum(map(len, parts))
        room = bytearray()
        if self._going and _is_gone(self._going[0][0]):
            room = self._going.popleft()[1]
        if len(room) < length:
            room = bytearray(length)
        self._going.append((info, room))
        at = 0
        for part in parts:
            room[at : at + len(part)] = part
            at += len(part)
        return memoryview(room)[:length]

    def reconnect(self) -> MQTTErrorCode:
        """Open the connection; discard the remains of an earlier connection."""
        self._begun.clear()
        self.transport_error, self.is_violated = "", False
        return super().reconnect()

    def _sock_send(self, buf: bytes | bytearray) -> int:
        try:
            return super()._sock_send(buf)
        except BlockingIOError:
            raise
        except OSError as error:
            self._note_error(error)
            raise

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Read all whole packets that the socket has."""
        if self.receiver is None or self._protocol != MQTTProtocolVersion.MQTTv5:
            return super().loop_read(max_packets)
        if self._sock is None:
            return MQTTErrorCode.MQTT_ERR_NO_CONN
        room = _room()
        try:
            count = cast(Any, self._sock).recv_into(room)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        except OSError as error:
            self._note_error(error)
            return self._loop_rc_handle(MQTTErrorCode.MQTT_ERR_CONN_LOST)
        if not count:
            self._note_error(ConnectionError("the broker ended the connection"))
            return self._loop_rc_handle(MQTTErrorCode.MQTT_ERR_CONN_LOST)
        rc = self._take_packets(room[:count], self.receiver)
        if rc == MQTTErrorCode.MQTT_ERR_PROTOCOL:
            self._note_error(ViolationError("the broker violates the MQTT protocol"))
        with self._msgtime_mutex:
            self._last_bytes_received = mqtt.time_func()
        return self._loop_rc_handle(rc) if rc > 0 else MQTTErrorCode.MQTT_ERR_SUCCESS

    def _note_error(self, error: OSError) -> None:
        self.transport_error = str(error)
        self.is_violated = isinstance(error, ViolationError)

    def _take_packets(self, piece: memoryview, receiver: Receiver) -> MQTTErrorCode:
        """Process the packets that a piece completes, and keep the incomplete last packet."""
        answers, at = bytearray(), 0
        rc = MQTTErrorCode.MQTT_ERR_SUCCESS
        while rc <= 0 and self._sock is not None and at < len(piece):
            is_begun = bool(self._begun)
            if is_begun:
                missing = _missing(self._begun)
                self._begun += piece[at : at + missing]
                at += missing
            packet = memoryview(self._begun) if is_begun else piece[at:]
            start, end = _bounds(packet)
            if start < 0 or end - start > self.most_packet_bytes:
                rc = MQTTErrorCode.MQTT_ERR_PROTOCOL
            elif start and end <= len(packet):
                if is_begun:
                    self._begun = bytearray()
                else:
                    at += end
                if not _take_published(packet[0], packet[start:end], receiver, answers):
                    rc = self._leave_to_paho(packet[0], packet[start:end])
            elif not is_begun:
                self._begun += packet
                at = len(piece)
            packet.release()
        if answers and self._sock is not None:
            self._packet_queue(_PUBACK, bytes(answers), 0, 0)
        return rc

    def _leave_to_paho(self, command: int, body: memoryview) -> MQTTErrorCode:
        self._in_packet["command"] = command
        self._in_packet["remaining_length"] = len(body)
        self._in_packet["packet"] = bytearray(body)
        self._in_packet["pos"] = 0
        try:
            return self._packet_handle()
        except MalformedPacket:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        finally:
            self._in_packet["command"] = 0


def _is_gone(info: mqtt.MQTTMessageInfo) -> bool:
    """Return True if paho no longer needs the content: sent, or lost with the connection."""
    return info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS or info.is_published()


def _room() -> memoryview:
    """Return the receive buffer of this thread, shared by all clients of the thread."""
    if not hasattr(_rooms, "room"):
        _rooms.room = memoryview(bytearray(PIECE_BYTES))
    return cast(memoryview, _rooms.room)


def _publish_header(topic: bytes, payload_bytes: int) -> bytes:
    """Return the header before the payload of a message at QoS 0 without properties."""
    length = 2 + len(topic) + 1 + payload_bytes
    header = bytearray((_PUBLISH,))
    while length > 0x7F:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    header.append(length)
    return bytes(header) + len(topic).to_bytes(2, "big") + topic + b"\0"


def _bounds(packet: memoryview | bytearray) -> tuple[int, int]:
    """Return start and end of a packet's body: 0 while the length is incomplete, -1 for a bad
    length.
    """
    length = 0
    for count in range(_MOST_LENGTH_BYTES):
        if 1 + count >= len(packet):
            return 0, 0
        byte = packet[1 + count]
        length |= (byte & 0x7F) << (7 * count)
        if not byte & 0x80:
            start = 2 + count
            return start, start + length
    return -1, 0


def _missing(begun: bytearray) -> int:
    """Return the number of bytes to read next: the rest of a packet, or 1 while its length is
    unknown.
    """
    start, end = _bounds(begun)
    return end - len(begun) if start else 1


def _take_published(command: int, body: memoryview, receiver: Receiver, answers: bytearray) -> bool:
    """Forward a message at QoS 0 or 1 without properties; return False for other packets."""
    qos = (command & 0x06) >> 1
    if command & 0xF0 != _PUBLISH or qos > _AT_LEAST_ONCE or len(body) < 2:
        return False
    after_topic = 2 + (body[0] << 8 | body[1])
    properties = after_topic + 2 * qos
    if len(body) <= properties or body[properties] or after_topic == 2:
        return False
    receiver(bytes(body[2:after_topic]), bytes(body[properties + 1 :]))
    if qos:
        answers += bytes((_PUBACK, 2)) + body[after_topic:properties]
    return True
