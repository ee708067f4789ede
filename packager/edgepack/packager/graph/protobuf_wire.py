"""Walk over protobuf bytes without decoding: start and end of each field."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Buffer(Protocol):
    """Bytes that can be indexed: `bytes`, or a memory-mapped file."""

    def __getitem__(self, index: int, /) -> int: ...

    def __len__(self) -> int: ...


class Field(NamedTuple):
    """Field of a message: its number, wire type, and the position of its content."""

    number: int
    wire: int
    start: int
    end: int


def fields(content: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message at `start` … `end`, in order.

    Ends early at a wire type that does not exist. A truncated last field is yielded with an `end`
    beyond the given end.
    """
    position = start
    while position < end:
        tag, position = varint(content, position, end)
        wire = tag & 7
        if wire == BYTES:
            length, position = varint(content, position, end)
            stop = position + length
        elif wire == VARINT:
            _, stop = varint(content, position, end)
        elif wire in (FIXED32, FIXED64):
            stop = position + (8 if wire == FIXED64 else 4)
        else:
            yield Field(tag >> 3, wire, position, position)
            return
        yield Field(tag >> 3, wire, position, stop)
        position = stop


def varint(content: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return a base-128 number and the position behind; `end + 1` for a truncated number."""
    value = shift = 0
    while position < end:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, position
    return value, end + 1
