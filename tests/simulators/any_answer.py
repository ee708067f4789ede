"""A server on loopback that answers with given bytes, and closes the connection."""

import contextlib
import socket
from collections.abc import Callable

from tests.simulators.loopback import LoopbackServer

Answer = Callable[[bytes], bytes]
"""Gives what is answered to a request, its head and body."""


class AnyAnswer(LoopbackServer):
    """Answers each connection once.

    Attributes:
        answer: The answer; may be changed at any time.
        requests: Received requests, in order.
    """

    def __init__(self, answer: Answer, host: str = "127.0.0.1") -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        super().__init__(host)

    def _serve(self, opened: socket.socket) -> None:
        with opened, contextlib.suppress(OSError):
            opened.settimeout(10)
            request = read_request(opened)
            self.requests.append(request)
            opened.sendall(self.answer(request))
            opened.shutdown(socket.SHUT_WR)
            while opened.recv(65536):
                pass


def read_request(opened: socket.socket) -> bytes:
    """Read head and body of a request."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += _more(opened)
    head, _, body = request.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0].split(b":")[1]) if lengths else 0
    while len(body) < length:
        body += _more(opened)
    return head + b"\r\n\r\n" + body


def _more(opened: socket.socket) -> bytes:
    if not (piece := opened.recv(65536)):
        raise OSError("it hung up")
    return piece


def http_answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """Return a complete HTTP answer with a close header, so that the client sends no second
    request.
    """
    fixed = (f"Content-Length: {len(body)}", "Connection: close")
    lines = [f"HTTP/1.1 {status}", *fixed, *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body
