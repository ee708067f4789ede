"""Encrypted files open whole and unchanged, with their own key and name, or not at all."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.bundle.encrypted_files import KEY_BYTES, decrypt_stream, encrypt_stream
from edgepack.errors import BundleError

KEY = bytes(range(KEY_BYTES))
PATH = "model/cpu/model.onnx"
SEGMENT = 64 * 1024
HEADER = 32


def encrypt(plain: bytes, key: bytes = KEY, path: str = PATH) -> bytes:
    target = io.BytesIO()
    encrypt_stream(io.BytesIO(plain), target, key, path)
    return target.getvalue()


def decrypt(encrypted: bytes, key: bytes = KEY, path: str = PATH) -> bytes:
    target = io.BytesIO()
    decrypt_stream(io.BytesIO(encrypted), target.write, key, path)
    return target.getvalue()


@pytest.mark.parametrize("size", [0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT])
def test_a_file_of_any_size_comes_back(size: int) -> None:
    plain = (b"weights " * (size // 8 + 1))[:size]
    encrypted = encrypt(plain)
    assert decrypt(encrypted) == plain
    assert b"weights" not in encrypted
    assert encrypt(plain) != encrypted, "the same file twice shows nothing of itself"


@given(at=st.integers(0, HEADER + 2 * (SEGMENT + 16)), bit=st.integers(0, 7))
def test_no_changed_bit_passes(at: int, bit: int) -> None:
    content = bytearray(_LONG)
    content[at % len(content)] ^= 1 << bit
    with pytest.raises(BundleError):
        decrypt(bytes(content))


_LONG = encrypt(bytes(2 * SEGMENT + 100))
_PIECE = SEGMENT + 16


@pytest.mark.parametrize(
    "changed",
    [
        _LONG[:HEADER],
        _LONG[: HEADER + _PIECE],
        _LONG[: HEADER + 2 * _PIECE],
        _LONG[:-1],
        _LONG + b"x",
        _LONG + _LONG[HEADER : HEADER + _PIECE],
        _LONG[:HEADER] + _LONG[HEADER + _PIECE :],
        _LONG[:HEADER]
        + _LONG[HEADER + _PIECE : HEADER + 2 * _PIECE]
        + _LONG[HEADER : HEADER + _PIECE]
        + _LONG[HEADER + 2 * _PIECE :],
        b"",
        b"no such file",
    ],
    ids=["header", "one", "two", "cut", "more", "again", "first gone", "swapped", "empty", "other"],
)
def test_segments_cannot_be_cut_off_added_or_swapped(changed: bytes) -> None:
    with pytest.raises(BundleError, match=r"decrypted|not encrypted"):
        decrypt(changed)


def test_a_file_opens_with_its_own_key_and_under_its_own_name() -> None:
    encrypted = encrypt(b"weights")
    with pytest.raises(BundleError, match="cannot be decrypted"):
        decrypt(encrypted, key=bytes(KEY_BYTES))
    with pytest.raises(BundleError, match="cannot be decrypted"):
        decrypt(encrypted, path="model/gpu/model.onnx")
