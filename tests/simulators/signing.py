"""Signers of devices' messages: keys, and a device with a real broker."""

import threading
from pathlib import Path
from types import TracebackType

import msgspec
import paho.mqtt.client as mqtt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.agent.broker.signing import read_signer
from edgepack.agent.config import read_config
from edgepack.agent.enrolment.identity import make_key
from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.wire import topics
from edgepack.wire.batches import Batch, Session
from edgepack.wire.changes import apply_changes, is_changes
from edgepack.wire.messages import Message, decode, encode
from edgepack.wire.reports import Changes, Reported
from edgepack.wire.signed import SIGNED_KINDS, BatchSigner, Sign, read_batch, sign_batch
from tests.simulators.certificates import self_signed
from tests.simulators.waiting import PATIENCE_S

KEY = make_key()
"""The key of devices of which a test has no folder."""
CERTIFICATE = self_signed(KEY, "any")


def sign_with(key: ec.EllipticCurvePrivateKey) -> Sign:
    return lambda content: key.sign(content, ec.ECDSA(hashes.SHA256()))


def read_messages(payload: bytes) -> tuple[Batch | None, tuple[bytes, ...]]:
    """Return a payload's contents, with any signature: a batch and its messages, or a last will."""
    if payload.startswith(b"{"):
        return None, (payload,)
    batch = read_batch(payload).batch
    return batch, tuple(bytes(content) for content in batch.messages)


class RawSigner(BatchSigner):
    """Signs any bytes as messages."""

    def __init__(self, *, tenant: str, device: str, boot: str, sign: Sign) -> None:
        super().__init__(tenant=tenant, device=device, boot=boot, sign=sign)
        self.place = (tenant, device, boot)
        self.key = sign
        self.numbers: dict[str, int] = {}
        self.word = ""

    def accept(self, offered: Session) -> bool:
        if offered.session == self.word:
            return False
        self.word = offered.session
        self.numbers.clear()
        return True

    def sign_raw(self, kind: str, *contents: bytes, sequence: int | None = None) -> bytes:
        """Return the signed payload; bytes that are not JSON become a text."""
        tenant, device, boot = self.place
        number = self.numbers.get(kind, 0) + 1 if sequence is None else sequence
        self.numbers[kind] = number + len(contents) - 1
        batch = Batch(
            tenant=tenant,
            device=device,
            kind=kind,
            boot=boot,
            session=self.word,
            sequence=number,
            messages=tuple(msgspec.Raw(_as_json(content)) for content in contents),
        )
        return sign_batch(batch, self.key)


def _as_json(content: bytes) -> bytes:
    try:
        msgspec.json.decode(content, type=msgspec.Raw)
        content.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.encode(content.decode(errors="replace")[:1000])
    return content


class Speaker:
    """An enrolled device, with its folder, that publishes a test's messages at a real broker.

    Args:
        folder: With its `agent.toml`.
        boot: Of its process.
        client_id: At the broker; "" is its id.
    """

    def __init__(self, folder: Path, boot: str = "b1", *, client_id: str = "") -> None:
        config = read_config(folder / "agent.toml")
        broker = config.broker
        assert broker is not None
        self.tenant, self.device = config.tenant, config.device
        self.signer = RawSigner(
            tenant=config.tenant,
            device=config.device,
            boot=boot,
            sign=read_signer(config.signing_key),
        )
        access = BrokerAccess(
            url=broker.url,
            ca_file=Path(broker.ca_file) if broker.ca_file else None,
            cert_file=Path(broker.cert_file) if broker.cert_file else None,
            key_file=Path(broker.key_file) if broker.key_file else None,
        )
        self.client = open_client(access, client_id or config.device)
        self._subscribed, self._offered = threading.Event(), threading.Event()
        self._greeting = b""
        self.client.on_connect = lambda client, *_: client.subscribe(
            topics.session(config.tenant, config.device), 1
        )
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = self._take

    def __enter__(self) -> "Speaker":
        self.client.connect_somewhere()
        self.client.loop_start()
        assert self._subscribed.wait(PATIENCE_S)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def _take(self, _client: mqtt.Client, _data: object, message: mqtt.MQTTMessage) -> None:
        offered = decode(bytes(message.payload), Session)
        if offered.boot == self.signer.place[2]:
            self.signer.accept(offered)
            self._offered.set()

    def greet(self) -> "Speaker":
        """Get a session, like a just started agent."""
        self._offered.clear()
        self.signer.word = ""
        self._greeting = self.signer.sign_raw("reported", b'{"v":1,"online":true,"at":1}')
        for _ in range(20):  # The fleet may not know the device yet.
            self.publish("reported", self._greeting)
            if self._offered.wait(5):
                return self
        raise AssertionError("no session was offered")

    def say(self, kind: topics.UpKind, *messages: Message | bytes, retain: bool = False) -> bytes:
        """Publish messages, signed if their kind requires signatures; return the payload."""
        contents = [it if isinstance(it, bytes) else encode(it) for it in messages]
        payload = self.signer.sign_raw(kind, *contents) if kind in SIGNED_KINDS else contents[0]
        self.publish(kind, payload, retain=retain)
        return payload

    def publish(self, kind: topics.UpKind, payload: bytes, *, retain: bool = False) -> None:
        """Publish any bytes, and wait for the broker."""
        topic = topics.up(self.tenant, self.device, kind)
        self.client.publish(topic, payload, qos=1, retain=retain).wait_for_publish(30)


def read_report(content: bytes, before: Reported | None) -> Reported:
    """Return a whole report, or the report before with the changes that came."""
    if not is_changes(content):
        return decode(content, Reported)
    assert before is not None, "changes before the first whole report"
    return apply_changes(encode(before), decode(content, Changes))
