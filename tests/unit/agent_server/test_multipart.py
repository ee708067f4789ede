"""Forms of HTTP, from any client."""

from contextlib import suppress
from email.message import EmailMessage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.agent.server.http_messages import HttpError
from edgepack.agent.server.multipart import MAX_HEAD_BYTES, MAX_PARTS, read_form

KIND = b"multipart/form-data; boundary=line"


def write_part(name: str, content: bytes) -> bytes:
    head = f'--line\r\nContent-Disposition: form-data; name="{name}"; filename="a.wav"\r\n'
    return head.encode() + b"Content-Type: audio/wav\r\n\r\n" + content + b"\r\n"


@given(
    st.dictionaries(st.text("abcdef[]_", min_size=1), st.binary(max_size=100), max_size=MAX_PARTS)
)
def test_all_parts_come_back_unchanged(parts: dict[str, bytes]) -> None:
    parts = {name: content.replace(b"--line", b"") for name, content in parts.items()}
    body = b"".join(write_part(name, content) for name, content in parts.items()) + b"--line--"
    for end in (b"", b"\r\n", b"\r\nbehind the form"):
        found = read_form(KIND, memoryview(body + end))
        assert {name: bytes(content) for name, content in found.items()} == parts


@given(st.binary(max_size=300), st.binary(max_size=80))
def test_any_bytes_are_a_form_or_refused(content: bytes, kind: bytes) -> None:
    for given_kind, body in (
        (kind, content),
        (KIND, content),
        (KIND, b"--line" + content),
        (KIND, b"--line\r\n" + content + b"\r\n--line--"),
        (b"multipart/form-data; boundary=" + kind, b"--" + kind + b"--"),
    ):
        with suppress(HttpError):
            read_form(given_kind, memoryview(body))


def test_forms_of_many_parts_are_refused_at_once() -> None:
    body = b"--line\r\n" + b"\r\n--line" * 1_000_000
    with pytest.raises(HttpError, match=f"more than {MAX_PARTS} parts"):
        read_form(KIND, memoryview(body))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "begin with its boundary"),
        (b"before\r\n--line--", "begin with its boundary"),
        (b"--line", "part 1 of the form is malformed"),
        (b"--lines\r\n\r\n\r\n--line--", "part 1 of the form is malformed"),
        (write_part("a", b"x"), "part 1 of the form is malformed"),
        (write_part("a", b"x") + b"--line--\r\n--line--", "part 2 of the form is malformed"),
        (write_part("a", b"x") * 2 + b"--line--", "two parts 'a'"),
        (b"--line\r\nA: b\r\n\r\nx\r\n--line--", "no name"),
        (b'--line\r\nContent-Disposition: file; name="a"\r\n\r\n\r\n--line--', "no name"),
        (b"--line\r\n" + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n\r\n--line--", "head of at most"),
    ],
)
def test_malformed_forms_are_refused(body: bytes, words: str) -> None:
    with pytest.raises(HttpError, match=words):
        read_form(KIND, memoryview(body))


@pytest.mark.parametrize(
    "kind",
    [
        b"",
        b"application/json",
        b"multipart/form-data",
        b"multipart/mixed; boundary=line",
        b"multipart/form-data; boundary=" + b"a" * 71,
        b'multipart/form-data; boundary="a\xff"',
        b"multipart/form-data; boundary*=utf-8''line",
    ],
)
def test_other_kinds_are_refused(kind: bytes) -> None:
    with pytest.raises(HttpError, match="boundary"):
        read_form(kind, memoryview(write_part("a", b"x") + b"--line--"))


def test_names_of_other_clients_are_read() -> None:
    """Names without quotes, and in another order and case."""
    message = EmailMessage()
    message.add_header("content-disposition", "form-data", filename="b.wav", name="file")
    head = message.as_bytes().split(b"\n")[0]
    body = b"--line\r\ncontent-type: audio/wav\r\n" + head + b"\r\n\r\nabc\r\n--line--\r\n"
    assert bytes(read_form(KIND, memoryview(body))["file"]) == b"abc"
    plain = b"--line\r\nContent-Disposition:form-data;name=file\r\n\r\n\r\n--line--"
    assert bytes(read_form(KIND, memoryview(plain))["file"]) == b""
