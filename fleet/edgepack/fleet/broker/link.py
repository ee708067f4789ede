"""The controller's connection to the broker."""

import contextlib
import logging
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import paho.mqtt.client as mqtt
from cryptography import x509
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edgepack.errors import TransferError
from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.wire.messages import MAX_MESSAGE_BYTES

log = logging.getLogger(__name__)

_CREDENTIALS = "check --broker-user and --broker-password-file, or the certificate"
_ACCESS_RULES = (
    "let the broker's access rules name this controller: edgepack fleet broker-config writes them"
)
MAX_PACKET_BYTES = 2 * MAX_MESSAGE_BYTES
WINDOW = 8
"""Pieces handed to the socket and not yet taken by it; more would only fill memory."""


class Link:
    """A connection that is kept up; its callbacks never wait and never raise.

    Args:
        access: The broker.
        client_id: The controller's own.
        subscriptions: Topic filters.
        trial: An unused topic, published to check that the broker accepts messages.
        on_message: Gets topic and payload, on paho's thread.
        on_connected: Called on paho's thread after each (re)connection.
        lasting: Session expiry in seconds; None reconnects automatically. None is opened again by
            itself. With a number, another client with the same client id ends this connection, and
            the broker keeps messages for that many seconds.
        keepalive_s: The broker closes the connection after 1.5 times this period without a packet.

    Attributes:
        has_shared: Whether the broker reports support for shared subscriptions.
    """

    def __init__(
        self,
        access: BrokerAccess,
        *,
        client_id: str,
        subscriptions: Sequence[str],
        trial: str,
        on_message: Callable[[str, bytes], None],
        on_connected: Callable[[], None],
        lasting: int | None = None,
        keepalive_s: int = 30,
    ) -> None:
        self._access, self._client_id = access, client_id
        self._subscriptions, self._trial = tuple(subscriptions), trial
        self._lasting, self._keepalive_s = lasting, keepalive_s
        self.has_shared = False
        self._trial_id: int | None = None
        self._on_message = on_message
        self._on_connected = on_connected
        self._answered = threading.Event()
        self._refusal, self._remedy = "", _CREDENTIALS
        self._unsent: deque[mqtt.MQTTMessageInfo] = deque()
        self._client = open_client(access, client_id, reopens=lasting is None)
        self._client.max_queued_messages_set(0)
        self._client.on_connect = self._connected
        self._client.on_disconnect = self._disconnected
        self._client.on_message = self._message
        self._client.receiver = self._receive
        self._client.most_packet_bytes = MAX_PACKET_BYTES
        self._client.on_publish = self._published

    @property
    def is_connected(self) -> bool:
        """True if the broker is there now."""
        return self._client.is_connected()

    def broker_certificate(self) -> x509.Certificate | None:
        """Return the certificate that the broker showed; None without TLS or a connection."""
        opened = self._client.socket()
        if not isinstance(opened, ssl.SSLSocket):
            return None
        try:
            found = opened.getpeercert(binary_form=True)
            return x509.load_der_x509_certificate(found) if found else None
        except (OSError, ValueError):  # The connection ends just now.
            return None

    @property
    def can_publish(self) -> bool:
        """True always: messages published while the broker is away are sent after the reconnect."""
        return True

    def lead(self) -> None:
        """Do nothing: the connection of the only controller always leads."""

    def follow(self) -> None:
        """Do nothing: no other controller could lead."""

    def open(self, timeout_s: float = 10.0) -> None:
        """Connect; reconnect from now on whenever the connection breaks.

        Raises:
            TransferError: The broker cannot be reached, does not answer, or refuses.
        """
        remedy = "start the broker, or name another with --broker"
        try:
            self._client.connect_somewhere(
                keepalive=self._keepalive_s,
                clean_start=self._lasting is None,
                properties=_properties(self._lasting),
            )
        except ssl.SSLError as error:
            raise TransferError(
                f"no TLS connection to the broker: {error}",
                found_in=self._access.url,
                remedy="edgepack fleet broker-config writes certificates that fit this fleet",
            ) from error
        except OSError as error:
            raise TransferError(
                f"cannot reach the broker: {error.strerror or error}",
                found_in=self._access.url,
                remedy=remedy,
            ) from error
        self._client.loop_start()
        if not self._answered.wait(timeout_s):
            self.close()
            raise TransferError(
                f"the broker gave no answer within {timeout_s:g} s",
                found_in=self._access.url,
                remedy="check port, TLS (mqtts://) and the client certificate",
            )
        if self._refusal:
            self.close()
            raise TransferError(
                f"the broker refused the controller: {self._refusal}",
                found_in=self._access.url,
                remedy=self._remedy,
            )

    def look_after(self) -> None:
        """Restart paho's thread if the thread has ended; call this method regularly.

        Without the thread the connection would seem open, but no message would pass.
        """
        name = f"paho-mqtt-client-{self._client_id}"
        if any(thread.name == name for thread in threading.enumerate()):
            return
        log.error("broker=%s its thread has ended and is started again", self._access.url)
        self._client.loop_stop()
        with contextlib.suppress(OSError):  # the thread tries again
            self._client.reconnect()
        self._client.loop_start()

    def subscribe(self, subscription: str) -> None:
        """Hold another filter from now on."""
        self._subscriptions = (*self._subscriptions, subscription)
        self._client.subscribe(subscription, qos=1)

    def unsubscribe(self, subscription: str) -> None:
        """Hold that filter no longer."""
        self._subscriptions = tuple(one for one in self._subscriptions if one != subscription)
        self._client.unsubscribe(subscription)

    def close(self) -> None:
        """End the connection."""
        self._client.disconnect()
        self._client.loop_stop()

    def publish_retained(self, topic: str, payload: bytes) -> None:
        """Publish at QoS 1; messages published while the broker is away are sent after the
        reconnect.
        """
        self._client.publish(topic, payload, qos=1, retain=True)

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message that is not retained."""
        self._client.publish(topic, payload, qos=1)

    def acknowledge(self, topic: str, payload: bytes) -> None:
        """Publish an acknowledgement: this connection is that of any controller."""
        self.publish(topic, payload)

    def send_chunks(self, topic: str, payloads: Sequence[bytes]) -> bool:
        """Publish at QoS 0 after the socket accepted earlier messages; return False without a
        connection.

        Blocks: never call this method from a callback.
        """
        if not self._client.is_connected():
            self._unsent.clear()
            return False
        info = self._client.publish_all(topic, payloads)
        if info.rc != mqtt.MQTT_ERR_SUCCESS:
            return False
        self._unsent.append(info)
        while len(self._unsent) >= WINDOW:
            oldest = self._unsent.popleft()
            while not oldest.is_published():
                if not self._client.is_connected():
                    self._unsent.clear()
                    return False
                oldest.wait_for_publish(timeout=0.2)
        return True

    def _connected(
        self,
        client: mqtt.Client,
        _userdata: Any,
        _flags: mqtt.ConnectFlags,
        reason: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if reason.is_failure:
            self._refusal = str(reason)
            log.warning("broker=%s refused because=%s", self._access.url, reason)
        else:
            self._refusal = ""
            log.info("broker=%s connected", self._access.url)
            # Brokers that do share need not say so.
            self.has_shared = bool(getattr(properties, "SharedSubscriptionAvailable", 1))
            for subscription in self._subscriptions:
                client.subscribe(subscription, qos=1)
            self._trial_id = client.publish(self._trial, b"", qos=1).mid
            self._on_connected()
            return
        self._answered.set()

    def _published(
        self,
        _client: mqtt.Client,
        _userdata: Any,
        message_id: int,
        reason: ReasonCode,
        _properties: Properties,
    ) -> None:
        """Log a rejected message: a broker accepts connections and subscriptions of clients without
        rights.
        """
        if message_id != self._trial_id:
            return
        self._trial_id = None
        if reason.is_failure:
            self._refusal = f"it may not publish ({reason})"
            self._remedy = _ACCESS_RULES
            log.warning("broker=%s takes nothing because=%s", self._access.url, reason)
        self._answered.set()

    def _disconnected(
        self,
        _client: mqtt.Client,
        _userdata: Any,
        _flags: mqtt.DisconnectFlags,
        reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        if reason.is_failure:
            because = self._client.transport_error or reason
            log.warning("broker=%s lost because=%s", self._access.url, because)

    def _message(self, _client: mqtt.Client, _userdata: Any, message: mqtt.MQTTMessage) -> None:
        self._receive(bytes(message._topic), bytes(message.payload))

    def _receive(self, name: bytes, payload: bytes) -> None:
        try:
            topic = name.decode()
        except UnicodeDecodeError:
            topic = ""  # no topic that devices write, and counted as such
        try:
            self._on_message(topic, payload)
        except Exception:  # an exception here would end paho's thread while it looks connected
            log.exception("topic=%s message dropped", topic)


def _properties(lasting: int | None) -> Properties:
    """Ask the broker for no message longer than any that a device has to say."""
    asked = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    asked.MaximumPacketSize = MAX_PACKET_BYTES
    if lasting is not None:
        asked.SessionExpiryInterval = lasting
    return asked
