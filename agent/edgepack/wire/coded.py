"""Coded chunks: several chunks of a file in a single message, from which each device recovers its
missing chunk.

The bytes of the chunks are XORed, shorter chunks filled up with zeros. A device that has all of
these chunks except a single chunk XORs the known chunks out again, and compares the rest with the
signed manifest like any other chunk.
"""

import struct
from collections.abc import Iterable, Mapping

import msgspec

from edgepack.bitmap import pack_bits, read_bits
from edgepack.bundle.metadata import MAX_CHUNK_BYTES
from edgepack.errors import TransferError

WINDOW_CHUNKS = 512
"""The chunks of a message lie so close together in the file."""
MAX_MEMBERS = 32
"""Chunks in a message: a device reads so many to get one. Of twenty, each device that lost 5 % of
all lacks just one with the best odds."""
_HEAD = struct.Struct(">IIB")


class CodedChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A message as received, trusted for nothing but its own size.

    Attributes:
        number: Identifies the message for the depot.
        members: Indices of the chunks, ascending, 2 to `MAX_MEMBERS`.
        content: Their bytes, XORed.
    """

    number: int
    members: tuple[int, ...]
    content: bytes


def pack_coded(number: int, contents: Mapping[int, bytes]) -> bytes:
    """Return the message that has these chunks.

    Args:
        number: 0 to 2**32 - 1.
        contents: By index, all within `WINDOW_CHUNKS`.
    """
    first, last = min(contents), max(contents)
    bitmap = pack_bits([index - first for index in contents], last - first + 1)
    return _HEAD.pack(number, first, len(bitmap)) + bitmap + xor(contents.values())


def read_coded(payload: bytes) -> CodedChunk:
    """Read a message.

    Raises:
        TransferError: The payload is not a coded message.
    """
    if len(payload) < _HEAD.size:
        raise TransferError("coded chunk without a header")
    number, first, length = _HEAD.unpack_from(payload)
    bitmap = payload[_HEAD.size : _HEAD.size + length]
    content = payload[_HEAD.size + length :]
    if not content:
        raise TransferError("coded chunk without content")
    if len(content) > MAX_CHUNK_BYTES:
        raise TransferError("coded chunk too long")
    members = tuple(first + index for index in read_bits(bitmap))
    if length * 8 > WINDOW_CHUNKS or not 2 <= len(members) <= MAX_MEMBERS:
        raise TransferError(f"coded chunk of {len(members)} chunks")
    return CodedChunk(number=number, members=members, content=bytes(content))


def xor(contents: Iterable[bytes]) -> bytes:
    """Return the XOR of all contents, as long as the longest; read a content at a time."""
    mixed = length = 0
    for content in contents:
        mixed ^= int.from_bytes(content, "little")
        length = max(length, len(content))
    return mixed.to_bytes(length, "little")
