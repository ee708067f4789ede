"""Heads and chunked bodies from untrusted clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.agent.server.http_messages import ChunkedBody, HttpError, read_head

GOOD = b"POST /v2/models/a/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 12"


def test_head_has_target_fields_and_length() -> None:
    head = read_head(GOOD + b"\r\nX-Two:  a b ")
    assert (head.method, head.target, head.length) == ("POST", "/v2/models/a/infer", 12)
    assert head.fields[b"x-two"] == b"a b"
    assert head.is_kept


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b"GET / HTTP/2", 505),
        (b"GET /a b HTTP/1.1", 400),
        (b"GET http://elsewhere/ HTTP/1.1", 400),
        (b"GET /\xff HTTP/1.1", 400),
        (b"G\x00T / HTTP/1.1", 400),
        (GOOD + b"\r\nContent-Length: 13", 400),
        (GOOD + b"\r\nHost: y", 400),
        (GOOD + b"\r\nTransfer-Encoding: chunked", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked", 400),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: +5", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 5, 5", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: " + b"9" * 40, 400),
        (b"POST / HTTP/1.1\r\nContent-Length : 5", 400),
        (b"POST / HTTP/1.1\r\n folded: 5", 400),
        (b"POST / HTTP/1.1\r\nno colon", 400),
        (b"GET / HTTP/1.1" + b"\r\na: b" * 101, 431),
    ],
)
def test_malformed_or_ambiguous_head_is_rejected(content: bytes, status: int) -> None:
    with pytest.raises(HttpError) as caught:
        read_head(content)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("version", "wish", "is_kept"),
    [("1.1", "", True), ("1.1", "close", False), ("1.0", "", False), ("1.0", "Keep-Alive", True)],
)
def test_connection_is_kept_as_the_client_asks(version: str, wish: str, is_kept: bool) -> None:
    field = f"\r\nConnection: {wish}" if wish else ""
    assert read_head(f"GET / HTTP/{version}{field}".encode()).is_kept is is_kept


@given(st.binary(max_size=300))
def test_any_bytes_are_a_head_or_an_error(content: bytes) -> None:
    status = 0
    try:
        read_head(content)
    except HttpError as error:
        status = error.status
    assert status in (0, 400, 431, 505)


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=50), max_size=8),
    trailer=st.sampled_from([b"", b"X: y\r\n"]),
    rest=st.binary(max_size=20),
    step=st.integers(1, 40),
)
def test_chunked_body_is_decoded_however_it_is_cut(
    pieces: list[bytes], trailer: bytes, rest: bytes, step: int
) -> None:
    coded = b"".join(b"%x;a=b\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    coded += b"0\r\n" + trailer + b"\r\n"
    whole, decoder = coded + rest, ChunkedBody(1000)
    for at in range(0, len(whole), step):
        left = decoder.feed(whole[at : at + step])
        if left is not None:
            assert bytes(decoder.body) == b"".join(pieces)
            assert left + whole[at + step :] == rest
            return
    raise AssertionError("the body has no end")


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"\r\n", 400),
        (b"-1\r\n", 400),
        (b"0x5\r\n", 400),
        (b"5\r\nabcdefg", 400),
        (b"65\r\n", 413),
        (b"f" * 15 + b"\r\n", 413),
        (b"1" * 2000, 400),
    ],
)
def test_malformed_chunked_body_is_rejected(content: bytes, status: int) -> None:
    with pytest.raises(HttpError) as caught:
        ChunkedBody(100).feed(content)
    assert caught.value.status == status
