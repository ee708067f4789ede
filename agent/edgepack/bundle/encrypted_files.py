"""Encryption of files with the content key: AES-256-GCM in segments (the STREAM construction).

    header    "edgepack" 0x01, salt (16 bytes), nonce prefix (7 bytes)
    segment   64 KiB of text, AES-256-GCM with a tag of 16 bytes; the last segment may be shorter

Each file has a key of its own: HKDF-SHA256 of the content key, with the file's salt and its path.
So no file can stand in for another. A segment's nonce is the prefix, its number (4 bytes,
big-endian) and a flag for the last segment (1 byte): segments cannot be left out, swapped or cut
off. A file of any size is read and written segment by segment.
"""

import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgepack.errors import BundleError

KEY_BYTES = 32
"""Of a content key and of the keys that follow from it."""

_MAGIC = b"edgepack\x01"
_SALT_BYTES = 16
_PREFIX_BYTES = 7
_SEGMENT_BYTES = 64 * 1024
_TAG_BYTES = 16
_HEADER_BYTES = len(_MAGIC) + _SALT_BYTES + _PREFIX_BYTES
_MOST_SEGMENTS = 2**32


def encrypt_stream(source: BinaryIO, target: BinaryIO, content_key: bytes, path: str) -> None:
    """Encrypt the rest of a file; each call gives different bytes.

    Args:
        source: The plain file.
        target: Receives the encrypted file.
        content_key: 32 bytes.
        path: POSIX path of the file in its bundle.
    """
    salt, prefix = os.urandom(_SALT_BYTES), os.urandom(_PREFIX_BYTES)
    cipher = _cipher(content_key, salt, path)
    target.write(_MAGIC + salt + prefix)
    for number, segment, is_last in _segments(source, _SEGMENT_BYTES):
        target.write(cipher.encrypt(_nonce(prefix, number, is_last), segment, None))


def decrypt_stream(
    source: BinaryIO, write: Callable[[bytes], object], content_key: bytes, path: str
) -> None:
    """Decrypt the rest of a file; after a failure the caller must discard the output.

    Args:
        source: The encrypted file.
        write: Receives the plain file piece by piece.
        content_key: 32 bytes.
        path: POSIX path of the file in its bundle.

    Raises:
        BundleError: The file is not encrypted, was changed or cut off, or belongs to another key or
            path.
    """
    header = source.read(_HEADER_BYTES)
    if len(header) != _HEADER_BYTES or not header.startswith(_MAGIC):
        raise BundleError(f"'{path}' is not encrypted as its bundle says", found_in=path)
    salt, prefix = header[len(_MAGIC) : -_PREFIX_BYTES], header[-_PREFIX_BYTES:]
    cipher = _cipher(content_key, salt, path)
    for number, segment, is_last in _segments(source, _SEGMENT_BYTES + _TAG_BYTES):
        try:
            write(cipher.decrypt(_nonce(prefix, number, is_last), segment, None))
        except (InvalidTag, ValueError) as error:
            raise BundleError(
                f"'{path}' cannot be decrypted: it was changed, or belongs to another bundle",
                found_in=path,
                remedy="fetch the bundle again, or build it again",
            ) from error


def _cipher(content_key: bytes, salt: bytes, path: str) -> AESGCM:
    derived = HKDF(
        algorithm=hashes.SHA256(),
        length=KEY_BYTES,
        salt=salt,
        info=b"edgepack file 1\0" + path.encode(),
    )
    return AESGCM(derived.derive(content_key))


def _nonce(prefix: bytes, number: int, is_last: bool) -> bytes:
    return prefix + number.to_bytes(4) + bytes([is_last])


def _segments(source: BinaryIO, size_bytes: int) -> Iterator[tuple[int, bytes, bool]]:
    """Yield segments with their numbers, and a flag for the last; an empty file has a single
    segment.
    """
    segment = source.read(size_bytes)
    for number in range(_MOST_SEGMENTS):
        following = source.read(size_bytes)
        yield number, segment, not following
        if not following:
            return
        segment = following
    raise BundleError("the file is too long to be encrypted")
