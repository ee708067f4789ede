"""Listener of a device's `/metrics`: HTTP on loopback or a unix socket, without authentication.

Peers are untrusted: a request has a length and a deadline, and connections have a number.
"""

import contextlib
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable

from edgepack.metrics.settings import Address
from edgepack.metrics.text import content_type

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 8
REQUEST_S = 5.0
RETRY_S = 10.0
_MAX_REQUEST = 8 * 1024
_SOCKET_MODE = 0o660
_END = b"\r\n\r\n"


class MetricsListener:
    """Answers requests on threads of its own.

    Args:
        address: Where to listen.
        render: Returns the text in a format of `edgepack.metrics.text`.
    """

    def __init__(self, address: Address, render: Callable[[str], bytes]) -> None:
        self._address, self._render = address, render
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._stop = threading.Event()
        self._listening: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self.trouble = ""
        """Why nothing listens, as a sentence; "" without a problem."""

    def start(self) -> None:
        """Listen from now on; an address in use is tried again and again."""
        self._bind()
        self._thread.start()

    def stop(self) -> None:
        """Stop to listen."""
        self._stop.set()
        if self._listening is not None:
            with contextlib.suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
        if self._address.path and not self.trouble:
            with contextlib.suppress(OSError):
                os.unlink(self._address.path)  # noqa: PTH108 (a socket, not a file)

    @property
    def port(self) -> int:
        """The port, also if the settings leave the choice to the system."""
        return self._listening.getsockname()[1] if self._listening else 0

    def _bind(self) -> None:
        try:
            self._listening = _listen(self._address)
            self.trouble = ""
        except OSError as error:
            trouble = f"/metrics cannot listen: {error.strerror or error}"
            if trouble != self.trouble:
                log.warning("%s", trouble)
            self.trouble = trouble

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._listening is None:
                self._stop.wait(RETRY_S)
                self._bind()
                continue
            try:
                peer, _ = self._listening.accept()
            except OSError:
                self._stop.wait(0.1)  # No descriptor is free, or the listener stops.
                continue
            if not self._slots.acquire(blocking=False):
                peer.close()
                continue
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        try:
            with peer:
                status, form, body = self._respond(_read_request(peer))
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: {form}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                peer.settimeout(REQUEST_S)
                peer.sendall(head.encode() + body)  # `sendall` has one deadline for all bytes.
        except OSError:
            pass  # The peer went away, or took too long.
        except Exception:  # the outermost loop of the thread
            log.exception("/metrics fails because of a fault")
        finally:
            self._slots.release()

    def _respond(self, request: str) -> tuple[str, str, bytes]:
        """Return status, format and body."""
        first, _, headers = request.partition("\r\n")
        method, _, rest = first.partition(" ")
        if rest.partition(" ")[0].partition("?")[0] != "/metrics":
            return "404 Not Found", "text/plain", b"try /metrics\n"
        if method != "GET":
            return "405 Method Not Allowed", "text/plain", b"GET only\n"
        named = (line.partition(":") for line in headers.split("\r\n"))
        form = content_type("".join(v for name, _, v in named if name.lower() == "accept"))
        return "200 OK", form, self._render(form)


def _read_request(peer: socket.socket) -> str:
    """Return first line and headers of a request.

    Raises:
        OSError: The peer sent too much, too little, or too slowly.
    """
    until, content = time.monotonic() + REQUEST_S, b""
    while _END not in content:
        left_s = until - time.monotonic()
        if left_s <= 0 or len(content) > _MAX_REQUEST:
            raise TimeoutError
        peer.settimeout(left_s)
        piece = peer.recv(_MAX_REQUEST)
        if not piece:
            raise ConnectionResetError
        content += piece
    return content.partition(_END)[0].decode("latin-1")


def _listen(address: Address) -> socket.socket:
    if not address.path:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(address.path).st_mode):  # of an agent that was killed
            os.unlink(address.path)  # noqa: PTH108
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(address.path)
        os.chmod(address.path, _SOCKET_MODE)  # noqa: PTH101
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening
