"""HTTP/1.1: heads of requests, checked, and heads of responses."""

import re
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

MAX_HEAD_BYTES = 16 * 1024
MAX_FIELDS = 100
_TARGET = re.compile(rb"/[!-~]*")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REASONS = {status.value: status.phrase for status in HTTPStatus}
JSON, BINARY, TEXT = "application/json", "application/octet-stream", "text/plain"
EVENTS = "text/event-stream"
FAULT = "fault in edgepack: see the server's log"


class HttpError(Exception):
    """Error with a status of HTTP, answered in the protocol's form.

    Args:
        status: Status of the response.
        problem: Problem, place and remedy; lines are joined to a single line.
        retry_s: Seconds after which the request may succeed; 0 if unknown.
    """

    def __init__(self, status: int, problem: str, *, retry_s: int = 0) -> None:
        problem = "; ".join(line.strip() for line in problem.splitlines())
        super().__init__(problem)
        self.status, self.problem, self.retry_s = status, problem, retry_s


class Head(NamedTuple):
    """Head of a request.

    Attributes:
        method: In upper case.
        target: Path and query.
        fields: Header fields, names in lower case.
        length: Bytes of the body; -1 for a chunked body.
        is_kept: Whether the connection stays open after the response.
        is_newer: Whether the client reads HTTP/1.1.
    """

    method: str
    target: str
    fields: dict[bytes, bytes]
    length: int
    is_kept: bool
    is_newer: bool = True


class Response(NamedTuple):
    """Response to a request.

    Attributes:
        status: Status of HTTP.
        parts: Parts of the body.
        kind: Content type.
        fields: Further header fields, each with its end of line.
        stream: Called with a function that sends a part of the body, and ends the body at an empty
            part; None for a body of known length.
    """

    status: int
    parts: tuple[bytes | memoryview, ...] = ()
    kind: str = JSON
    fields: str = ""
    stream: Callable[[Callable[[bytes], None]], object] | None = None


@lru_cache(maxsize=128)
def read_head(content: bytes) -> Head:
    """Return the head of a request; clients send equal heads again and again.

    Args:
        content: First line and fields, without the empty line.

    Raises:
        HttpError: The head is malformed or ambiguous.
    """
    first, *lines = content.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not words[0].isalpha() or not _TARGET.fullmatch(words[1]):
        raise HttpError(400, "the first line is not an HTTP request")
    method, target, version = words
    if version not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise HttpError(505, "the server has HTTP/1.1 and HTTP/1.0")
    if len(lines) > MAX_FIELDS:
        raise HttpError(431, f"the request has more than {MAX_FIELDS} header fields")
    fields: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or not _NAME.fullmatch(name):
            raise HttpError(400, "a header field is malformed")
        if name in fields and name in (b"content-length", b"host", b"transfer-encoding"):
            raise HttpError(400, f"the request has two fields {name.decode()}")
        fields[name] = value.strip(b" \t")
    is_newer = version == b"HTTP/1.1"
    wish = fields.get(b"connection", b"").lower()
    is_kept = wish != b"close" if is_newer else wish == b"keep-alive"
    length = _read_length(fields, is_newer=is_newer)
    return Head(method.decode(), target.decode(), fields, length, is_kept, is_newer)


def _read_length(fields: dict[bytes, bytes], *, is_newer: bool) -> int:
    """Return the length of the body; -1 for a chunked body.

    Raises:
        HttpError: The length is not known.
    """
    length, coding = fields.get(b"content-length"), fields.get(b"transfer-encoding")
    if coding is not None:
        if length is not None or not is_newer or coding.lower() != b"chunked":
            raise HttpError(400, "the length of the body is ambiguous")
        return -1
    if length is None:
        return 0
    if not length.isdigit() or len(length) > 18:
        raise HttpError(400, "the field content-length is not a number")
    return int(length)


def write_head(response: Response, *, is_kept: bool, is_chunked: bool = False) -> bytes:
    """Return the head of a response.

    Args:
        response: The response.
        is_kept: Whether the connection stays open.
        is_chunked: Whether the body of a stream comes in chunks; else the end of the connection
            ends the body.
    """
    length = f"Content-Length: {sum(map(len, response.parts))}\r\n"
    if response.stream is not None:
        length = "Transfer-Encoding: chunked\r\n" if is_chunked else ""
    end = "" if is_kept else "Connection: close\r\n"
    return (
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
        f"Content-Type: {response.kind}\r\n{length}"
        f"{response.fields}{end}\r\n"
    ).encode("latin-1")


class ChunkedBody:
    """Decoder of a chunked body.

    Args:
        limit_bytes: Length of the body, at most.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._buffer = bytearray()
        self._left = 0
        self._is_trailer = False
        self.body = bytearray()

    def feed(self, content: bytes) -> bytes | None:
        """Decode further bytes; return the bytes behind the body once it is complete, else None.

        Raises:
            HttpError: The body is malformed or too long.
        """
        self._buffer += content
        buffer = self._buffer
        while True:
            if self._left > 2:
                piece = buffer[: self._left - 2]
                self.body += piece
                del buffer[: len(piece)]
                self._left -= len(piece)
                if self._left > 2:
                    return None
            if self._left:
                if len(buffer) < 2:
                    return None
                if buffer[:2] != b"\r\n":
                    raise HttpError(400, "a chunk of the body has another length than stated")
                del buffer[:2]
                self._left = 0
            end = buffer.find(b"\r\n")
            if end < 0:
                if len(buffer) > 1024:
                    raise HttpError(400, "a line of the chunked body is too long")
                return None
            line = bytes(buffer[:end])
            del buffer[: end + 2]
            if self._is_trailer:
                if not line:
                    return bytes(buffer)
                continue
            size = line.partition(b";")[0].strip()
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", size):
                raise HttpError(400, "a chunk of the body has no length")
            number = int(size, 16)
            if number:
                if len(self.body) + number > self._limit:
                    raise HttpError(413, f"the body has more than {self._limit} bytes")
                self._left = number + 2
            else:
                self._is_trailer = True
