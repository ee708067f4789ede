"""A new chunk follows from an old chunk and a delta, for any bytes."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.bundle.deltas import (
    MAGIC,
    WIDTHS,
    DeltaRecord,
    pack_difference,
    read_records,
    unpack_new,
)
from edgepack.bundle.metadata import MAX_CHUNK_BYTES
from edgepack.errors import BundleError


def record(new: bytes, old: bytes) -> DeltaRecord:
    width, packed = pack_difference(new, old)
    digests = (hashlib.sha256(content).digest() for content in (new, old))
    return DeltaRecord(
        new=next(digests), old=next(digests), size_bytes=len(new), width=width, packed=packed
    )


@settings(max_examples=200)
@given(new=st.binary(min_size=1, max_size=100), old=st.binary(max_size=120))
def test_every_pair_of_chunks_comes_back(new: bytes, old: bytes) -> None:
    assert unpack_new(record(new, old), old) == new


@pytest.mark.parametrize("kind", ["i1", "f2", "f4"])
def test_small_changes_of_weights_are_packed_short(kind: str) -> None:
    rng = np.random.default_rng(0)
    old = rng.normal(0, 30, 16_000)
    new = old + rng.normal(0, 0.3, old.size)
    before, after = (values.astype(f"<{kind}").tobytes() for values in (old, new))
    found = record(after, before)
    assert len(found.packed) < 0.9 * len(after)
    assert unpack_new(found, before) == after
    if kind == "i1":
        assert len(found.packed) < 0.25 * len(after)


def test_records_are_read_back_one_by_one(tmp_path: Path) -> None:
    records = [record(bytes([n]) * 70_000, bytes(70_001)) for n in range(3)]
    path = tmp_path / "delta"
    path.write_bytes(MAGIC + b"".join(each.encode() for each in records))
    assert list(read_records(path)) == records


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "this is not a delta"),
        (MAGIC + b"x", "the delta ends within a record"),
        (MAGIC + record(b"new", b"old").encode()[:-1], "the delta ends within a record"),
        (MAGIC + bytes(64) + bytes(9), "a record of the delta makes no sense"),
        (
            MAGIC + bytes(64) + (MAX_CHUNK_BYTES + 1).to_bytes(4) + b"\x01" + bytes(4),
            "a record of the delta makes no sense",
        ),
        (MAGIC + bytes(64) + b"\0\0\0\1\3\0\0\0\0", "a record of the delta makes no sense"),
        (MAGIC + bytes(64) + b"\0\0\0\1\1\xff\0\0\0", "a record of the delta makes no sense"),
    ],
)
def test_what_is_no_delta_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "delta"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=said):
        list(read_records(path))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_bomb_is_not_unpacked(width: int) -> None:
    _, packed = pack_difference(bytes(100_000), b"")
    with pytest.raises(BundleError, match="length differs"):
        unpack_new(DeltaRecord(new=b"", old=b"", size_bytes=50, width=width, packed=packed), b"old")
