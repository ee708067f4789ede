"""Versions: a newer minor version is read and kept, a newer major version is rejected."""

import contextlib
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.versions import Format, NewerVersionError, Version, version_of


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What the format below holds."""

    words: tuple[str, ...]
    blob: bytes = b""


FORMAT = Format("note", Note, Version(3, 1))


def decode(document: object) -> Note:
    return FORMAT.decode(json.dumps(document).encode()).value


def test_what_is_unknown_is_kept_with_its_minor_version_and_what_is_known_is_written() -> None:
    document = FORMAT.decode(b'{"v": 3, "minor": 8, "words": ["a"], "mood": {"is": ["good"]}}')
    written = json.loads(FORMAT.encode(Note(words=("b",)), document.unknown))
    assert written == {"v": 3, "minor": 8, "mood": {"is": ["good"]}, "words": ["b"], "blob": ""}


def test_bytes_come_back_as_they_went() -> None:
    note = Note(words=(), blob=bytes(range(256)))
    assert FORMAT.decode(FORMAT.encode(note)).value == note


def test_a_newer_major_version_is_refused_whatever_else_it_holds() -> None:
    with pytest.raises(NewerVersionError, match=r"the note is of version 4\.0") as caught:
        decode({"v": 4})
    assert caught.value.remedy == "update edgepack"


@pytest.mark.parametrize(
    "document",
    [
        {"v": 3},
        {"v": 3, "words": "a"},
        {"v": 0, "words": []},
        ["a"],
        "a",
        {"v": "3"},
        {"minor": -1},
    ],
)
def test_what_does_not_fit_its_version_is_damaged(document: object) -> None:
    with pytest.raises(ValueError, match=r"^(it|Object|Expected|.* is not a version)"):
        decode(document)


@given(st.binary(max_size=60))
def test_no_bytes_bring_anything_but_a_value_or_a_refusal(content: bytes) -> None:
    with contextlib.suppress(ValueError, NewerVersionError):
        FORMAT.decode(content)


def test_versions_compare_as_one_expects() -> None:
    assert version_of({}) == Version(1, 0) < version_of({"v": 1, "minor": 2}) < Version(2, 0)
    assert str(Version(2, 1)) == "2.1"
