"""Signed batches: the form in which a device publishes reports, events and telemetry.

A batch is a line with the signature (ECDSA P-256 over SHA-256, DER, base64), and the JSON that the
signature covers. Messages published at the same time are a single batch, so that telemetry costs a
single signature per interval.

A batch belongs to a *session*: an unpredictable word that the controller chose for a process of a
device. Inside a session the messages of each kind are numbered from 1. A recorded batch is
therefore worthless in another session, and old after the next batch in its own. No formerly
accepted number can shut out later batches: a device with a rejected batch gets a new session.
Windows of telemetry are numbered in the device's journal, so that a window counts once, whatever
session sends it.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.errors import TransferError
from edgepack.wire.batches import MAX_BATCH, Batch, Session
from edgepack.wire.messages import MAX_MESSAGE_BYTES, M, Message, decode, encode
from edgepack.wire.topics import UpKind

SIGNED_KINDS: frozenset[UpKind] = frozenset({"reported", "event", "telemetry", "sample", "log"})
"""Kinds that the controller accepts in signed batches only. A need changes nothing that is stored:
it has the depot send chunks, which whoever writes to the broker can withhold or repeat anyway."""
_CONTEXT = b"edgepack up 1\n"
"""Precedes what is signed, so that no other signature of the same key is one of a batch."""
_MAX_SIGNATURE = 128
_OVERHEAD_BYTES = 10 * 1024
"""Signature, names and certificate request of a batch, at most."""


class Signed(NamedTuple):
    """A received batch: unusable before its signature is verified."""

    signature: bytes
    body: bytes
    batch: Batch


Sign = Callable[[bytes], bytes]
"""Signs bytes with the device's key: gives the DER signature of ECDSA with SHA-256."""


def sign_batch(batch: Batch, sign: Sign) -> bytes:
    """Return the payload of a batch."""
    body = encode(batch)
    return base64.b64encode(sign(_CONTEXT + body)) + b"\n" + body


def read_batch(payload: bytes) -> Signed:
    """Split and decode a payload.

    Raises:
        TransferError: The payload is not a signed batch.
    """
    head, newline, body = payload.partition(b"\n")
    if not newline or len(head) > _MAX_SIGNATURE:
        raise TransferError("not a signed batch: the first line is not a signature")
    try:
        signature = base64.b64decode(head, validate=True)
    except binascii.Error as error:
        raise TransferError(f"not a signed batch: {error}") from error
    return Signed(signature, body, decode(body, Batch))


def is_signed_by(signed: Signed, key: ec.EllipticCurvePublicKey) -> bool:
    """Return whether a key's owner signed the batch."""
    try:
        key.verify(signed.signature, _CONTEXT + signed.body, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def group_messages(messages: Iterable[M]) -> Iterator[tuple[M, ...]]:
    """Divide messages of a kind into groups that each fit into a batch."""
    group: list[M] = []
    size = 0
    for message in messages:
        length = len(encode(message)) + 1
        if group and (
            len(group) == MAX_BATCH or size + length > MAX_MESSAGE_BYTES - _OVERHEAD_BYTES
        ):
            yield tuple(group)
            group, size = [], 0
        group.append(message)
        size += length
    if group:
        yield tuple(group)


class BatchSigner:
    """Signer of a process's published messages.

    Args:
        tenant, device: Sender of the messages.
        boot: Random id of this process.
        sign: Signs with the device's key.
        signing_request: See `Batch`.
    """

    def __init__(
        self, *, tenant: str, device: str, boot: str, sign: Sign, signing_request: str = ""
    ) -> None:
        self._tenant, self._device, self._boot = tenant, device, boot
        self._sign, self._signing_request = sign, signing_request
        self._session = ""
        self._sequences: dict[UpKind, int] = {}

    @property
    def has_session(self) -> bool:
        """True if the controller gave this process a session: before, only reports have a use."""
        return bool(self._session)

    def accept(self, offered: Session) -> bool:
        """Continue in the session that the controller gave.

        Returns:
            Whether the session is new: then important messages must be published again.
        """
        if offered.boot != self._boot or offered.session in ("", self._session):
            return False
        self._session = offered.session
        self._sequences.clear()
        return True

    def sign(
        self, kind: UpKind, messages: Iterable[Message], place: tuple[str, int] | None = None
    ) -> bytes:
        """Return the payload of a batch.

        Args:
            kind: Kind of the messages.
            messages: Messages of the batch.
            place: Journal, and number of the first message there; None counts in the session.
        """
        contents = tuple(msgspec.Raw(encode(message)) for message in messages)
        if place is None:
            place = ("", self._sequences.get(kind, 0) + 1)
            self._sequences[kind] = self._sequences.get(kind, 0) + len(contents)
        batch = Batch(
            tenant=self._tenant,
            device=self._device,
            kind=kind,
            boot=self._boot,
            session=self._session,
            journal=place[0],
            sequence=place[1],
            messages=contents,
            signing_request="" if self._session else self._signing_request,
        )
        return sign_batch(batch, self._sign)
