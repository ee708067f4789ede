"""The envelope around a signed payload: signer and key.

A sigstore bundle v0.3 that holds a DSSE envelope, written and opened with `cryptography` alone.
`signature.py` interprets the payload.
"""

import base64
import binascii
from collections.abc import Sequence

import msgspec
from cryptography.exceptions import InvalidSignature

from edgepack.bundle.keys import PublicKey, key_id, signature_algorithm
from edgepack.bundle.manifest import SIGNATURE_FILE
from edgepack.bundle.signing_keys import SigningKey
from edgepack.bundle.strict_json import convert_json, parse_json
from edgepack.errors import SignatureError

MAX_SIGNATURE_BYTES = 4 * 1024 * 1024
"""About 10,000 files."""

_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"


class _PublicKeyHint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hint: str


class _Material(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    public_key: _PublicKeyHint
    tlog_entries: tuple[()] = ()


class _Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sig: str
    keyid: str = ""


class _Envelope(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    payload: str
    payload_type: str
    signatures: tuple[_Signature]


class _SigstoreBundle(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    media_type: str
    verification_material: _Material
    dsse_envelope: _Envelope


class SignedPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Payload signed by a trusted key, not yet parsed.

    Attributes:
        content: The payload's bytes.
        key_id: The key that signed.
    """

    content: bytes
    key_id: str


def seal_payload(payload: bytes, key: SigningKey) -> bytes:
    """Sign a payload; the bytes of `model.sig`."""
    signature = key.sign(
        _pre_authentication_encoding(payload), signature_algorithm(key.public_key())
    )
    bundle = _SigstoreBundle(
        media_type=_MEDIA_TYPE,
        verification_material=_Material(public_key=_PublicKeyHint(hint=key_id(key.public_key()))),
        dsse_envelope=_Envelope(
            payload=base64.b64encode(payload).decode(),
            payload_type=_PAYLOAD_TYPE,
            signatures=(_Signature(sig=base64.b64encode(signature).decode()),),
        ),
    )
    return msgspec.json.encode(bundle) + b"\n"


def open_payload(content: bytes, keys: Sequence[PublicKey]) -> SignedPayload:
    """Check that a trusted key signed the payload; interpret nothing.

    Args:
        content: Bytes of `model.sig`.
        keys: The trusted keys; the signature of any key suffices.

    Raises:
        BundleError: The envelope is too long, not JSON, or of another form.
        SignatureError: The envelope is of another type, by an untrusted key, or was changed.
    """
    bundle = _read_bundle(content)
    envelope = bundle.dsse_envelope
    trusted = {key_id(key): key for key in keys}
    signer = bundle.verification_material.public_key.hint
    if signer not in trusted:
        known = ", ".join(_short(name) for name in trusted) or "none"
        raise SignatureError(
            f"the bundle is signed by the key {_short(signer)}, which is not trusted "
            f"(trusted: {known})",
            found_in=f"{SIGNATURE_FILE}, verificationMaterial.publicKey.hint",
            remedy="check with the public key that belongs to the key it was signed with",
        )
    payload = _base64(envelope.payload, "dsseEnvelope.payload")
    signature = _base64(envelope.signatures[0].sig, "dsseEnvelope.signatures")
    key = trusted[signer]
    try:
        key.verify(signature, _pre_authentication_encoding(payload), signature_algorithm(key))
    except InvalidSignature as error:
        raise SignatureError(
            f"the signature by key {_short(signer)} does not fit what it signs; "
            "the file was changed after signing",
            found_in=f"{SIGNATURE_FILE}, dsseEnvelope.signatures",
            remedy="fetch the bundle again, or sign it again",
        ) from error
    return SignedPayload(content=payload, key_id=signer)


def read_unverified_payload(content: bytes) -> bytes:
    """Return the payload of `model.sig` without verifying the signature: trust nothing in the
    payload.

    Raises:
        BundleError: The envelope is too long, is not JSON, or is of another form or type.
    """
    return _base64(_read_bundle(content).dsse_envelope.payload, "dsseEnvelope.payload")


def _read_bundle(content: bytes) -> _SigstoreBundle:
    document = parse_json(content, limit_bytes=MAX_SIGNATURE_BYTES, found_in=SIGNATURE_FILE)
    bundle = convert_json(document, _SigstoreBundle, found_in=SIGNATURE_FILE)
    expect_type(bundle.media_type, _MEDIA_TYPE, "mediaType")
    expect_type(bundle.dsse_envelope.payload_type, _PAYLOAD_TYPE, "dsseEnvelope.payloadType")
    return bundle


def expect_type(found: str, expected: str, key: str) -> None:
    """Raise `SignatureError` if a part of `model.sig` has another type."""
    if found != expected:
        raise SignatureError(
            f"{SIGNATURE_FILE} is of the type {found!a}, expected {expected!r}",
            found_in=f"{SIGNATURE_FILE}, {key}",
        )


def _pre_authentication_encoding(payload: bytes) -> bytes:
    """Return the bytes to sign: DSSE v1, https://github.com/secure-systems-lab/dsse protocol.md."""
    header = f"DSSEv1 {len(_PAYLOAD_TYPE)} {_PAYLOAD_TYPE} {len(payload)} "
    return header.encode() + payload


def _base64(text: str, key: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise SignatureError(
            f"{SIGNATURE_FILE} has text that is not base64", found_in=f"{SIGNATURE_FILE}, {key}"
        ) from error


def _short(identifier: str) -> str:
    """Return enough of a key id to tell keys apart; safe to print."""
    return ascii(identifier[:16]).strip("'")
