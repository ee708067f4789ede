"""The connection to the broker: MQTT 5 in paho's own thread, which never waits for the agent.

The callbacks put received messages into the inbox and return. An exception in a callback would end
paho's thread in silence, so each exception is caught, counted and logged.
"""

import logging
import random
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import paho.mqtt.client as mqtt
from cryptography import x509
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from edgepack.agent.broker.address import find_ways
from edgepack.agent.broker.complaints import SILENT, Complaints, describe_failure
from edgepack.agent.broker.credentials import read_password, tls_context
from edgepack.agent.broker.inbox import Acknowledged, Arrived, Connected, Inbox
from edgepack.agent.broker.quick_client import QuickClient
from edgepack.agent.broker.spoken import why_no_answer
from edgepack.agent.broker.takeovers import TakeoverCounter
from edgepack.agent.config import AgentConfig, BrokerConfig
from edgepack.agent.state.broker_state import BrokerStateNote
from edgepack.errors import DeviceError, SignatureError
from edgepack.web.clock import describe_own_certificate
from edgepack.wire import topics
from edgepack.wire.batches import Session
from edgepack.wire.messages import Message, encode
from edgepack.wire.reports import Reported
from edgepack.wire.router import Router
from edgepack.wire.signed import SIGNED_KINDS, BatchSigner

log = logging.getLogger(__name__)
_T = TypeVar("_T")

FIRST_DELAY_S = 1
LAST_DELAY_S = (20, 40)
"""The longest wait between attempts differs from device to device, so that a fleet does not
come back all at once."""
LEAVE_S = 1.0
"""How long a stopping agent waits for its farewell to be taken, and then for paho's thread, which
may be in the middle of a handshake with a broker that says nothing."""

MAX_PACKET_BYTES = 256 * 1024

_CREDENTIALS = "the broker refuses this device's user name, password or certificate"
_WHY_REFUSED = {
    "Bad user name or password": _CREDENTIALS,
    "Not authorized": _CREDENTIALS,  # What mosquitto says of a wrong password.
    "Client identifier not valid": "the broker does not accept the device id as client id",
}


class Connection:
    """Connection of a device to the broker.

    Args:
        config: The agent's settings.
        broker: How to reach the broker.
        inbox: Receives all messages.
        boot: Random id of this process, for the last will.
        signer: Signs published messages.
        rng: Randomness for the delay between attempts.

    Raises:
        DeviceError: The settings are inconsistent, or a file named in the settings cannot be read.
    """

    def __init__(
        self,
        config: AgentConfig,
        broker: BrokerConfig,
        inbox: Inbox,
        *,
        boot: str,
        signer: BatchSigner,
        rng: random.Random,
    ) -> None:
        self._signer, self._unsigned = signer, ""
        self._tenant, self._device = config.tenant, config.device
        self._filters = list(topics.device_subscriptions(config.tenant, config.device))
        if config.trust.root:
            self._filters.append(topics.metadata_subscription(config.tenant))
        self._inbox = inbox
        self._lanes: Router[Callable[[Arrived], None]] = Router(
            {
                topics.broadcast(config.tenant, topics.FILE): inbox.put_chunk,
                topics.repair(config.tenant, config.device, topics.FILE): inbox.put_chunk,
                topics.coded(config.tenant, topics.FILE): inbox.put_chunk,
            }
        )
        self._boot = boot
        self._files: frozenset[str] = frozenset()
        self._asked_coded: dict[int | None, list[str]] = {}
        self._hears_coded: set[str] = set()
        self._lock = threading.Lock()
        self._in_since: float | None = None
        self._revived_at: float | None = None
        self._is_judged = False
        self._takeovers = TakeoverCounter(config.device, rng)
        self._last_delay_s = rng.randint(*LAST_DELAY_S)
        self.faults = 0
        ways = find_ways(broker)
        self._keepalive_s = broker.keepalive_s
        self._title = ",".join(way.address.title for way in ways)
        if proxies := sorted({way.proxy.title for way in ways if way.proxy}):
            self._title += f" through the proxy {','.join(proxies)}"
        self._note = BrokerStateNote(Path(config.state_dir), self._title)
        self._complaints = Complaints(
            self._title, lambda because: self._note.note(is_connected=False, because=because)
        )
        client = QuickClient(
            CallbackAPIVersion.VERSION2, client_id=config.device, protocol=mqtt.MQTTv5
        )
        self._client = client
        self._broker = broker
        self._context = tls_context(broker, config.device) if ways[0].address.is_tls else None
        try:
            client.reach(ways, self._context, first=rng.randrange(len(ways)))
        except ModuleNotFoundError as error:
            raise DeviceError(str(error), found_in="broker.url") from error
        if broker.username or broker.password_file:
            client.username_pw_set(broker.username or config.device, read_password(broker))
        client.reconnect_delay_set(FIRST_DELAY_S, self._last_delay_s)
        will = Reported(online=False, at=time.time(), boot=boot)
        client.will_set(self._up("reported"), encode(will), qos=1, retain=True)
        client.on_socket_open = self._on_socket_open
        client.on_connect = self._guard(self._on_connect)
        client.on_connect_fail = self._guard(self._on_connect_fail)
        client.on_disconnect = self._guard(self._on_disconnect)
        client.on_message = self._guard(self._on_message)
        client.receiver = self._guard(self._take)
        client.most_packet_bytes = MAX_PACKET_BYTES
        client.on_publish = self._guard(self._on_publish)
        client.on_subscribe = self._guard(self._on_subscribe)

    @property
    def is_connected(self) -> bool:
        """True if messages can be sent now."""
        return bool(self._client.is_connected())

    @property
    def has_session(self) -> bool:
        """True if the controller gave a session to this process."""
        return self._signer.has_session

    def accept_session(self, session: Session) -> bool:
        """Sign in this session from now on; return True if the session is new."""
        return self._signer.accept(session)

    @property
    def trouble(self) -> str:
        """Problem of the connection that needs a person, as a sentence; "" without a problem."""
        since = self._in_since
        return self._takeovers.trouble(time.monotonic() - since if since is not None else 0.0)

    def start(self) -> None:
        """Connect in the background, and again whenever the broker is lost."""
        self._note.note(is_connected=False)
        self._connect()
        self._complaints.await_answer()

    def _connect(self) -> None:
        self._client.connect_later(
            keepalive=self._keepalive_s,
            clean_start=mqtt.MQTT_CLEAN_START_FIRST_ONLY,
            properties=_bounded(),
        )
        self._client.loop_start()

    def look_after(self) -> None:
        """Start paho's thread again if the thread has ended; call this method now and then.

        Without this check the connection would look alive while no message comes or goes.

        Raises:
            RuntimeError: There can be no further thread.
        """
        name = f"paho-mqtt-client-{self._device}"
        if any(thread.name == name for thread in threading.enumerate()):
            return
        now = time.monotonic()
        if self._revived_at is not None and now - self._revived_at < FIRST_DELAY_S:
            return
        self._revived_at = now
        log.error("the thread that talks to the broker has ended and is started again")
        self._connect()

    def stop(self) -> None:
        """Publish the offline report and disconnect; the last will covers all other endings."""
        self._complaints.forget()
        if self.is_connected:
            farewell = Reported(online=False, at=time.time(), boot=self._boot)
            sent = self._client.publish(self._up("reported"), encode(farewell), 1, retain=True)
            try:
                sent.wait_for_publish(LEAVE_S)
            except (RuntimeError, ValueError) as error:
                log.debug("the farewell was not sent: %s", error)
        self._client.disconnect()
        leaving = threading.Thread(target=self._client.loop_stop, name="leaving", daemon=True)
        leaving.start()
        leaving.join(LEAVE_S)

    def publish(
        self,
        kind: topics.UpKind,
        *messages: Message,
        retain: bool = False,
        place: tuple[str, int] | None = None,
    ) -> int | None:
        """Publish messages of a single kind with QoS 1: as a signed batch, or a need unchanged.

        Returns:
            The id, which comes back as `Acknowledged`. None if the broker is away or the key cannot
            be used: nothing stale is queued, and important messages are published again later.
        """
        if not self.is_connected:
            return None
        try:
            if kind in SIGNED_KINDS:
                payload = self._signer.sign(kind, messages, place)
            else:
                (message,) = messages
                payload = encode(message)
        except SignatureError as error:
            if str(error) != self._unsigned:
                log.warning("%s not published because=%s", kind, error)
            self._unsigned = str(error)
            return None
        self._unsigned = ""
        sent = self._shield(lambda: self._client.publish(self._up(kind), payload, 1, retain=retain))
        return sent.mid if sent is not None else None

    def renew_certificate(self) -> None:
        """Use the certificates that lie in the files now, from the next connection on."""
        if self._context is not None:
            self._context.load_cert_chain(self._broker.cert_file, self._broker.key_file or None)
            if self._broker.ca_file:
                self._context.load_verify_locations(self._broker.ca_file)

    def listen(self, files: frozenset[str]) -> None:
        """Subscribe to the broadcast chunks of exactly these files, plain and coded."""
        with self._lock:
            added, gone = files - self._files, self._files - files
            self._files = files
            self._hears_coded -= gone
            if added:
                self._shield(lambda: self._subscribe_to(added))
        if gone:
            ways = (topics.broadcast, topics.coded)
            names = [way(self._tenant, sha) for sha in gone for way in ways]
            self._shield(lambda: self._client.unsubscribe(names))

    def hears_coded(self, sha256: str) -> bool:
        """Return True if the broker said that coded chunks of that file come through."""
        return sha256 in self._hears_coded

    def _subscribe_to(self, files: frozenset[str]) -> None:
        self._client.subscribe([(topics.broadcast(self._tenant, sha), 0) for sha in files])
        # By itself: a broker's older rules may refuse it, and then chunks come as they are.
        coded = [(topics.coded(self._tenant, sha), 0) for sha in files]
        self._asked_coded[self._client.subscribe(coded)[1]] = list(files)

    def _up(self, kind: topics.UpKind) -> str:
        return topics.up(self._tenant, self._device, kind)

    def _shield(self, call: Callable[[], _T]) -> _T | None:
        """Call paho, which sends at once; no behaviour of the broker may end the agent."""
        try:
            return call()
        except Exception:  # the outermost frame of ours around what a broker can cause
            self.faults += 1
            log.exception("fault %d while a message was sent to the broker", self.faults)
            return None

    def _guard(self, callback: Callable[..., None]) -> Callable[..., None]:
        def guarded(*args: Any) -> None:
            try:
                callback(*args)
            except Exception:  # The outermost frame of ours in paho's thread.
                self.faults += 1
                log.exception("fault %d in a callback of the broker's thread", self.faults)

        return guarded

    def _on_socket_open(self, _client: mqtt.Client, _data: Any, opened: Any) -> None:
        # Without this a QoS 1 round trip took 47 ms instead of 0.8 ms on mosquitto.
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_judged = False

    def _on_connect(
        self,
        client: mqtt.Client,
        _data: Any,
        _flags: mqtt.ConnectFlags,
        reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        self._is_judged = True
        if reason.is_failure:
            self._complaints.say(_WHY_REFUSED.get(str(reason), f"the broker refuses: {reason}"))
            return
        log.info("connected to %s as %s", self._client.way.address.title, self._device)
        self._complaints.forget()
        self._note.note(is_connected=True)
        self._in_since = time.monotonic()
        client.subscribe([(name, 1) for name in self._filters])
        with self._lock:
            self._asked_coded.clear()
            self._hears_coded.clear()
            if self._files:
                self._subscribe_to(self._files)
        self._inbox.put(Connected())

    def _on_connect_fail(self, _client: mqtt.Client, _data: Any) -> None:
        error = sys.exc_info()[1]  # paho calls this while it handles the error
        is_handshake = isinstance(error, ssl.SSLError | ConnectionResetError)
        is_refused_here = isinstance(error, ssl.SSLCertVerificationError)
        explain = self._explain if is_handshake and not is_refused_here else None
        self._complaints.say(f"cannot reach the broker: {describe_failure(error)}", explain)

    def _on_disconnect(
        self,
        _client: mqtt.Client,
        _data: Any,
        _flags: mqtt.DisconnectFlags,
        reason: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        since, self._in_since = self._in_since, None
        if not reason.is_failure:
            return
        if since is not None:
            self._note_loss(str(reason), time.monotonic() - since)
        elif not self._is_judged:
            ended = "it ends the connection without an answer"
            is_silent = str(reason) == "Keep alive timeout"
            self._complaints.say(SILENT if is_silent else ended, self._explain)

    def _note_loss(self, reason: str, lasted_s: float) -> None:
        """Try again: soon, or late where another client uses this identity."""
        reason, is_violation = self._client.transport_error or reason, self._client.is_violated
        delay_s = self._takeovers.note_loss(reason, lasted_s, is_violation=is_violation)
        if delay_s is None:
            self._client.reconnect_delay_set(FIRST_DELAY_S, self._last_delay_s)
            self._complaints.say(f"the connection was lost: {reason}")
        else:
            self._note.note(is_connected=False, because=self.trouble)
            self._client.reconnect_delay_set(delay_s, delay_s)
            log.warning("broker %s: %s; trying on in %d s", self._title, self.trouble, delay_s)

    def _explain(self) -> str:
        if invalid := self._own_certificate_problem():
            return invalid
        way = self._client.way
        address = way.address
        if address.is_web or way.proxy:
            return ""  # What is between says so itself, in the connection's error.
        return why_no_answer(address.host, address.port, is_tls=address.is_tls)

    def _own_certificate_problem(self) -> str:
        """Return why the device's certificate is not valid by the device's clock; "" if valid."""
        try:
            content = Path(self._broker.cert_file).read_bytes() if self._broker.cert_file else b""
            return (
                describe_own_certificate(x509.load_pem_x509_certificate(content), time.time())
                if content
                else ""
            )
        except (OSError, ValueError):
            return ""

    def _on_message(self, _client: mqtt.Client, _data: Any, message: mqtt.MQTTMessage) -> None:
        self._take(bytes(message._topic), bytes(message.payload))

    def _take(self, name: bytes, payload: bytes) -> None:
        try:
            topic = name.decode()
        except UnicodeDecodeError:
            topic = ""  # No topic of ours, and dropped as such.
        lane, _ = self._lanes.find(topic) or (self._inbox.put, "")
        lane(Arrived(topic=topic, payload=payload))

    def _on_publish(
        self,
        _client: mqtt.Client,
        _data: Any,
        message_id: int,
        reason: ReasonCode,
        _properties: Properties,
    ) -> None:
        self._inbox.put(Acknowledged(message_id=message_id, code=reason.value, reason=str(reason)))

    def _on_subscribe(
        self,
        _client: mqtt.Client,
        _data: Any,
        message_id: int,
        reasons: list[ReasonCode],
        _properties: Properties,
    ) -> None:
        with self._lock:
            files = self._asked_coded.pop(message_id, None)
            if files is not None:
                answers = zip(files, reasons, strict=False)
                granted = {sha256 for sha256, said in answers if not said.is_failure}
                self._hears_coded |= granted & self._files
                return
        refused = [str(reason) for reason in reasons if reason.is_failure]
        if refused:
            self._complaints.say(
                f"it does not let this device read what is meant for it: {refused[0]}"
            )


def _bounded() -> Properties:
    """Ask the broker for no message longer than any that is meant for a device."""
    bounded = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    bounded.MaximumPacketSize = MAX_PACKET_BYTES
    return bounded
