"""A sample of a device, encrypted to the fleet's public key.

    first line    the sealed content key, JSON (`recipients.seal_content_key`)
    rest          the sample, encrypted with the content key (`encrypted_files`)

Each sample has a content key of its own. The sample is bound to its place (tenant, device, model
and request): a sample opens at no other place.
"""

import io
import os
from pathlib import Path

import msgspec

from edgepack.bundle.encrypted_files import KEY_BYTES, decrypt_stream, encrypt_stream
from edgepack.bundle.keys import PrivateKey, parse_public_key
from edgepack.bundle.manifest import Encryption
from edgepack.bundle.recipients import open_content_key, seal_content_key
from edgepack.decoding import decode_json
from edgepack.errors import BundleError

_MAX_HEAD_BYTES = 4096


def sample_place(tenant: str, device: str, model: str, request: str) -> str:
    """Return the place of a sample; only a sample of this place opens there."""
    return f"sample/{tenant}/{device}/{model}/{request}"


def seal_sample(content: bytes, recipient: str, place: str) -> bytes:
    """Encrypt a sample; each call gives different bytes.

    Args:
        content: The sample.
        recipient: PEM of the public key.
        place: See `sample_place`.

    Raises:
        SignatureError: The recipient is not an elliptic-curve public key.
        DeviceError: The package cryptography is too old.
    """
    key = parse_public_key(recipient.encode(), Path("recipient"))
    content_key = os.urandom(KEY_BYTES)
    target = io.BytesIO()
    target.write(msgspec.json.encode(seal_content_key(content_key, [key])) + b"\n")
    encrypt_stream(io.BytesIO(content), target, content_key, place)
    return target.getvalue()


def open_sample(content: bytes, key: PrivateKey, place: str) -> bytes:
    """Decrypt a sample.

    Raises:
        BundleError: The bytes are not an encrypted sample, were changed, or belong to another
            place.
        DeviceError: The sample is encrypted to another key.
    """
    head, _, rest = content[:_MAX_HEAD_BYTES].partition(b"\n")
    try:
        encryption = decode_json(head, Encryption)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError("not an encrypted sample: its first line is not a sealed key") from error
    if not rest:
        raise BundleError("not an encrypted sample: only a sealed key")
    plain = io.BytesIO()
    decrypt_stream(
        io.BytesIO(content[len(head) + 1 :]), plain.write, open_content_key(encryption, key), place
    )
    return plain.getvalue()
