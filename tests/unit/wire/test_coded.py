"""Several chunks in one message: what is packed is read, and nothing else is."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.bundle.metadata import MAX_CHUNK_BYTES
from edgepack.errors import TransferError
from edgepack.wire.coded import MAX_MEMBERS, WINDOW_CHUNKS, CodedChunk, pack_coded, read_coded, xor


def head(number: int = 1, first: int = 0, bitmap: bytes = b"\x03") -> bytes:
    return struct.pack(">IIB", number, first, len(bitmap)) + bitmap


@given(
    first=st.integers(0, 2**32 - 1),
    offsets=st.frozensets(st.integers(1, WINDOW_CHUNKS - 1), min_size=1, max_size=MAX_MEMBERS - 1),
    data=st.data(),
)
def test_what_is_packed_is_read_and_gives_each_chunk_to_who_has_the_others(
    first: int, offsets: frozenset[int], data: st.DataObject
) -> None:
    members = sorted({first, *(first + offset for offset in offsets)})
    contents = {index: data.draw(st.binary(min_size=1, max_size=40)) for index in members}
    coded = read_coded(pack_coded(7, contents))
    assert (coded.number, coded.members) == (7, tuple(members))
    assert len(coded.content) == max(map(len, contents.values()))
    for index, content in contents.items():
        others = [contents[other] for other in members if other != index]
        assert xor((coded.content, *others))[: len(content)] == content


@pytest.mark.parametrize(
    ("payload", "because"),
    [
        (b"", "without a header"),
        (b"\0" * 8, "without a header"),
        (head(), "without content"),
        (struct.pack(">IIB", 1, 0, 64) + b"\x03", "without content"),
        (head() + bytes(MAX_CHUNK_BYTES + 1), "too long"),
        (head(bitmap=b"") + b"x", "of 0 chunks"),
        (head(bitmap=bytes(3)) + b"x", "of 0 chunks"),
        (head(bitmap=b"\x04") + b"x", "of 1 chunks"),
        (head(bitmap=b"\xff" * 5) + b"x", "of 40 chunks"),
        (head(bitmap=b"\xff" * 64) + b"x", "of 512 chunks"),
        (head(bitmap=b"\x01" + bytes(63) + b"\x01") + b"x", "of 2 chunks"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(payload: bytes, because: str) -> None:
    with pytest.raises(TransferError, match=because):
        read_coded(payload)


def test_a_member_may_be_beyond_any_file() -> None:
    assert read_coded(head(first=2**32 - 1) + b"x") == CodedChunk(
        number=1, members=(2**32 - 1, 2**32), content=b"x"
    )
