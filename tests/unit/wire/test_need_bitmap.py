"""The bitmap of a need: what one side packs the other reads, and no bytes whatever break it."""

import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.errors import TransferError
from edgepack.wire.need_bitmap import pack_missing, read_missing
from edgepack.wire.transfers import NeedFile

SHA = "ab" * 32


@given(count=st.integers(1, 5000), data=st.data())
def test_a_bitmap_says_exactly_what_is_missing(count: int, data: st.DataObject) -> None:
    chunks = data.draw(st.sets(st.integers(0, count - 1)))
    packed = pack_missing(SHA, chunks, count)
    assert (packed.sha256, packed.chunk_count) == (SHA, count)
    assert read_missing(packed, count) == tuple(sorted(chunks))


@pytest.mark.parametrize(
    ("need", "problem"),
    [
        (NeedFile(sha256=SHA, chunk_count=7, missing=b""), "need counts 7 chunks of a file that"),
        (NeedFile(sha256=SHA, chunk_count=9, missing=b"no zlib"), "no readable bitmap"),
        (NeedFile(sha256=SHA, chunk_count=9, missing=zlib.compress(b"\1")), "is not the 2 bytes"),
        (
            NeedFile(sha256=SHA, chunk_count=9, missing=zlib.compress(bytes(10**7))),
            "is not the 2 bytes",
        ),
        (NeedFile(sha256=SHA, chunk_count=10**12, missing=b""), "need counts 1000000000000"),
    ],
)
def test_a_need_that_makes_no_sense_is_refused(need: NeedFile, problem: str) -> None:
    with pytest.raises(TransferError, match=problem):
        read_missing(need, 9)


@given(missing=st.binary(max_size=200))
def test_no_bytes_whatever_break_the_reader(missing: bytes) -> None:
    with suppress(TransferError):
        read_missing(NeedFile(sha256=SHA, chunk_count=20, missing=missing), 20)


@given(bitmap=st.binary(min_size=3, max_size=3))
def test_no_bitmap_whatever_names_a_chunk_that_the_file_has_not(bitmap: bytes) -> None:
    need = NeedFile(sha256=SHA, chunk_count=20, missing=zlib.compress(bitmap))
    chunks = read_missing(need, 20)
    assert set(chunks) <= set(range(20))
    assert len(chunks) <= sum(byte.bit_count() for byte in bitmap)
