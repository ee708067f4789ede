"""Files are cut along tensors, so that unchanged tensors need not travel."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.bundle.chunks import (
    CHUNK_BYTES,
    chunk_digests,
    digest_file,
    entry,
    fixed_chunks,
    index_file,
    offsets,
)
from edgepack.bundle.metadata import MAX_CHUNK_BYTES
from edgepack.errors import BundleError


def random_bytes(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(count)


@settings(max_examples=60)
@given(
    size=st.integers(0, 500_000),
    boundaries=st.lists(st.integers(-10, 600_000), max_size=30),
)
def test_chunks_cover_every_byte_once_and_hold_the_limits(
    tmp_path_factory: pytest.TempPathFactory, size: int, boundaries: list[int]
) -> None:
    path = tmp_path_factory.mktemp("cut") / "weights.bin"
    content = random_bytes(size)
    path.write_bytes(content)
    index = index_file(path, boundaries)
    starts, digests = offsets(index), chunk_digests(index)
    assert sum(index.sizes) == size
    assert all(1 <= chunk <= MAX_CHUNK_BYTES for chunk in index.sizes)
    assert len(starts) == len(digests) == len(index.sizes)
    for start, length, digest in zip(starts, index.sizes, digests, strict=True):
        assert hashlib.sha256(content[start : start + length]).digest() == digest


def test_an_unchanged_tensor_keeps_its_chunks_when_another_one_grows(tmp_path: Path) -> None:
    small, large = random_bytes(3_000, 1), random_bytes(400_000, 2)
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(small + large)
    two.write_bytes(small * 2 + large)
    before = set(chunk_digests(index_file(one, [0, 3_000])))
    after = set(chunk_digests(index_file(two, [0, 6_000])))
    assert len(before - after) == 1
    assert len(before & after) == len(before) - 1


def test_small_tensors_share_a_chunk(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(random_bytes(100 * 1000))
    index = index_file(path, range(0, 100_000, 1000))
    assert index.sizes == (65_000, 35_000)


def test_without_tensors_the_cut_is_every_64_kib_and_leaves_no_tiny_rest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * CHUNK_BYTES + 10))
    assert index_file(path).sizes == (CHUNK_BYTES, CHUNK_BYTES + 10)


def test_an_empty_file_has_no_chunk(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    index = index_file(tmp_path / "empty")
    assert (index.sizes, index.sha256, offsets(index), chunk_digests(index)) == ((), b"", (), ())


def test_manifest_and_signature_are_cut_every_64_kib() -> None:
    assert fixed_chunks(0) == ()
    assert fixed_chunks(CHUNK_BYTES) == (0,)
    assert fixed_chunks(CHUNK_BYTES + 1) == (0, CHUNK_BYTES)


def test_an_entry_has_size_and_digest_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/a").write_bytes(b"content")
    found = entry(tmp_path, "model/a")
    assert (found.path, found.size_bytes) == ("model/a", 7)
    assert found.sha256 == hashlib.sha256(b"content").hexdigest()


def test_a_missing_file_or_a_link_is_no_entry(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot read 'none': No such file"):
        entry(tmp_path, "none")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(BundleError, match="cannot read 'link'"):
        digest_file(tmp_path / "link")
