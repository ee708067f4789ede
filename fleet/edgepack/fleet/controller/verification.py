"""Verification of messages from devices, before any part is stored.

1. A device's last will is the only message without a signature: the broker publishes the last will.
   The last will marks the device as unreachable and has no other effect.
2. Everything else is a signed batch (`edgepack.wire.signed`) for this tenant, this device and this
   topic.
3. The signing key has a certificate that the fleet issued to this device, neither revoked nor
   expired.
4. The batch belongs to the device's current session, or opens the next session. The controller
   chooses the session's word for a single process of the device after that process's first message,
   so no earlier recording contains the word. A report in a session that another leader or an
   earlier term chose changes nothing either: the database may be a copy from before the batch, in
   which the batch is new. The device is given a session of this term, and reports again.
   Events and telemetry of the earlier session are true, and each counts once.
5. Its messages have numbers above those of the batch before, and not by more than `MAX_STEP`.
   Changes follow the last accepted report directly. Of telemetry, windows that came before are left
   out, and the device hears which windows the fleet has. Pieces of samples and log lines
   have no numbers: a sample is known by its digest, log lines by their request, and a repeated
   message changes nothing.
6. A device counts at most as many inferences as can have run since its last telemetry, or in a day
   if that is longer.

A refused batch of the device's own key is answered with a new session. The device's next report is
therefore accepted, after any history.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from sqlalchemy.orm import Session as Transaction

from edgepack.bundle.certificates import UNREADABLE
from edgepack.errors import TransferError
from edgepack.fleet.controller.inbox import Incoming
from edgepack.fleet.database import certificates, telemetry_sequences
from edgepack.fleet.database.devices import Presence
from edgepack.fleet.database.telemetry_sequences import TelemetrySequence
from edgepack.wire.batches import Batch, Received, Session
from edgepack.wire.changes import is_changes
from edgepack.wire.messages import decode, encode
from edgepack.wire.orders import MAX_STEP
from edgepack.wire.reports import Reported
from edgepack.wire.signed import Signed, is_signed_by, read_batch
from edgepack.wire.telemetry import Telemetry
from edgepack.wire.topics import UpKind

UNNUMBERED: frozenset[UpKind] = frozenset({"sample", "log"})
"""Kinds of messages of which a repetition changes nothing."""
MAX_PER_S = 1_000_000
"""Inferences a second that a device can count: one takes ONNX Runtime 5 us and more, and a device
has some processors."""
CREDIT_S = 24 * 3600.0
"""A device that counted nothing for longer can count what fits into this time."""
_WORD_BYTES, _EPOCH_BYTES = 16, 8
_WILL_ALONE = "only a last will has no signature"


class RefusalError(TransferError):
    """A message that was not accepted.

    Attributes:
        reason: A few words, for counters of such messages.
        is_forged: Whether the device is not the author.
    """

    def __init__(self, reason: str, problem: str, *, is_forged: bool = False) -> None:
        super().__init__(problem)
        self.reason, self.is_forged = reason, is_forged


class StaleError(TransferError):
    """A batch that came before: a broker may deliver a batch twice."""


class OverQuotaError(TransferError):
    """A batch with more messages than the device's quota has left."""


class Verifier:
    """Verifies messages.

    Args:
        tenant: Tenant of the devices.

    Attributes:
        epoch: Begins the words of all sessions that this process chooses in its term as leader.
    """

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        self._secret = secrets.token_bytes(32)
        self._term = 0
        self.epoch = secrets.token_hex(_EPOCH_BYTES)

    def begin_term(self, term: int) -> None:
        """Accept no report in a session of an earlier term of leadership."""
        if term != self._term:
            self._term, self.epoch = term, secrets.token_hex(_EPOCH_BYTES)

    def begin(self, session: Transaction, incoming: Sequence[Incoming], now: float) -> "Seals":
        """Read the keys and telemetry numbers that verify a batch of messages."""
        signed = {message.device for message in incoming if message.kind != "need"}
        counting = {message.device for message in incoming if message.kind == "telemetry"}
        return Seals(
            tenant=self._tenant,
            secret=self._secret,
            epoch=self.epoch,
            now=now,
            keys=certificates.public_keys(session, signed, now),
            telemetry=telemetry_sequences.find(session, counting),
        )


class Seals:
    """Verifies the messages of a transaction.

    Args:
        tenant: Tenant of the devices.
        secret: Makes the words of sessions unpredictable.
        epoch: See `Verifier`.
        now: Seconds since the epoch.
        keys: Public keys of devices, by id.
        telemetry: Numbers of the telemetry that came before, by device.

    Attributes:
        sessions: Sessions to send once the transaction is durable, by device.
        received: Acknowledgements of telemetry to send then, by device.
    """

    def __init__(
        self,
        *,
        tenant: str,
        secret: bytes,
        epoch: str,
        now: float,
        keys: dict[str, tuple[ec.EllipticCurvePublicKey, ...]],
        telemetry: dict[str, TelemetrySequence],
    ) -> None:
        self._tenant, self._secret, self._epoch, self._now = tenant, secret, epoch, now
        self._keys, self._telemetry = keys, telemetry
        self._counted: set[str] = set()
        self.sessions: dict[str, bytes] = {}
        self.received: dict[str, bytes] = {}

    def open(
        self, presence: Presence, message: Incoming, admits: Callable[[int], bool]
    ) -> tuple[bytes, ...]:
        """Return the messages that a device signed; none if the device needs a session first.

        Args:
            presence: The device's stored state; its session and numbers are updated.
            message: The received message.
            admits: Whether the device may send this number of messages.

        Raises:
            OverQuotaError: The device's quota has no messages left; nothing changed.
            RefusalError: The message is not from the device, not new, or beyond all bounds.
            StaleError: The message was received before.
            TransferError: The message is malformed.
        """
        # 1.
        if message.payload[:1] == b"{":
            return (_last_will(message),)
        # 2.
        signed = self._read(message)
        # 3.
        keys = self._keys.get(presence.id, ())
        if not any(is_signed_by(signed, key) for key in keys):
            because = "no valid certificate of the device is known" if not keys else "wrong key"
            raise RefusalError("not signed by the device", because, is_forged=True)
        return self._accept(presence, message, signed.batch, admits)

    def introduce(self, message: Incoming) -> str:
        """Return the certificate request in the greeting of a device that is not enrolled.

        Raises:
            RefusalError: The greeting has no request, or another key signed the greeting.
            TransferError: The greeting is malformed.
        """
        signed = self._read(message)
        request = signed.batch.signing_request
        try:
            key = x509.load_pem_x509_csr(request.encode()).public_key()
        except UNREADABLE as error:
            raise RefusalError("without a certificate request", str(error)) from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or not is_signed_by(signed, key):
            raise RefusalError("not signed by the device", "wrong key")
        self._keys[message.device] = (key,)
        return request

    def count(self, presence: Presence, window: Telemetry) -> None:
        """Subtract a device's counted inferences from its possible inferences.

        Raises:
            RefusalError: The device counts more inferences than possible.
        """
        # 6.
        told = max(window.latency.count + window.failures, window.shadow_count)
        known = self._telemetry.get(presence.id, TelemetrySequence())
        until = max(known.counted_until, self._now - CREDIT_S) + told / MAX_PER_S
        if until > self._now:
            because = f"{told} inferences in {window.window_s:g} s are more than can be"
            raise RefusalError("count out of range", because)
        self._telemetry[presence.id] = msgspec.structs.replace(known, counted_until=until)
        self._counted.add(presence.id)

    def keep(self, session: Transaction) -> None:
        """Write the numbers of telemetry that changed."""
        changed = {name: self._telemetry[name] for name in self._counted}
        telemetry_sequences.keep(session, changed)

    def _read(self, message: Incoming) -> Signed:
        signed = read_batch(message.payload)
        batch = signed.batch
        if (batch.tenant, batch.device, batch.kind) != (self._tenant, message.device, message.kind):
            place = f"{batch.tenant} {batch.device} {batch.kind}"
            raise RefusalError("for another topic", place, is_forged=True)
        if len(batch.messages) != 1 and (message.kind == "reported" or not batch.messages):
            raise TransferError(f"a batch of {len(batch.messages)} messages")
        return signed

    def _accept(
        self, presence: Presence, message: Incoming, batch: Batch, admits: Callable[[int], bool]
    ) -> tuple[bytes, ...]:
        # 4.
        if not batch.session:
            self._offer_session(presence, batch)
            return ()
        if (batch.boot, batch.session) != (presence.boot, presence.session):
            is_next = hmac.compare_digest(batch.session.encode(), self._word(presence, batch))
            if not is_next or message.kind in ("telemetry", *UNNUMBERED):
                self._offer_session(presence, batch)
                raise RefusalError("of another session", "an old one, or the session has ended")
            presence.boot, presence.session = batch.boot, batch.session
            presence.report_count = presence.event_count = 0
            presence.desired_sent_at = 0.0  # A process that has just started is answered at once.
        if message.kind == "reported" and not batch.session.startswith(self._epoch):
            self._offer_session(presence, batch)
            return ()
        # 5.
        if not admits(len(batch.messages)):
            raise OverQuotaError(f"{len(batch.messages)} messages at once")
        try:
            if message.kind == "telemetry":
                return self._number_telemetry(presence, batch)
            if message.kind not in UNNUMBERED:
                self._number(presence, message, batch)
        except RefusalError:
            self._offer_session(presence, batch)
            raise
        return tuple(bytes(content) for content in batch.messages)

    def _number(self, presence: Presence, message: Incoming, batch: Batch) -> None:
        number, last = batch.sequence, batch.sequence + len(batch.messages) - 1
        is_report = message.kind == "reported"
        before = presence.report_count if is_report else presence.event_count
        _check_step(last, before)
        if last == before:
            raise StaleError(f"{number} came before")
        if number <= before:
            raise RefusalError("replayed", f"{number} after {before}")
        if is_report and number != before + 1 and is_changes(bytes(batch.messages[0])):
            raise RefusalError("after a lost report", f"{number} after {before}")
        if is_report:
            presence.report_count = last
        else:
            presence.event_count = last

    def _number_telemetry(self, presence: Presence, batch: Batch) -> tuple[bytes, ...]:
        """Return the windows that did not come before."""
        known = self._telemetry.get(presence.id, TelemetrySequence())
        known = known.of(batch, presence.session)
        last = batch.sequence + len(batch.messages) - 1
        _check_step(last, known.sequence)
        contents = []
        for number, content in enumerate(batch.messages, batch.sequence):
            if known.is_new(number):
                known = known.with_number(number)
                contents.append(bytes(content))
        if batch.journal:
            received = Received(journal=batch.journal, until=last, newest=known.sequence)
            self.received[presence.id] = encode(received)
        if not contents:
            raise StaleError(f"{batch.sequence} came before")
        self._telemetry[presence.id] = known
        self._counted.add(presence.id)
        return tuple(contents)

    def _offer_session(self, presence: Presence, batch: Batch) -> None:
        word = self._word(presence, batch).decode()
        self.sessions[presence.id] = encode(Session(boot=batch.boot, session=word))

    def _word(self, presence: Presence, batch: Batch) -> bytes:
        """Return the word of the session after the device's current session, for a process."""
        asked = msgspec.json.encode((presence.id, batch.boot, presence.session))
        word = hmac.new(self._secret, asked, hashlib.sha256).hexdigest()[: 2 * _WORD_BYTES]
        return f"{self._epoch}{word}".encode()


def _check_step(last: int, before: int) -> None:
    if last > before + MAX_STEP:
        raise RefusalError("sequence out of range", f"{last} after {before}")


def _last_will(message: Incoming) -> bytes:
    if message.kind != "reported":
        raise RefusalError("unsigned", _WILL_ALONE, is_forged=True)
    will = decode(message.payload, Reported)
    if will.online:
        raise RefusalError("unsigned", _WILL_ALONE, is_forged=True)
    return encode(Reported(online=False, at=will.at, boot=will.boot))
