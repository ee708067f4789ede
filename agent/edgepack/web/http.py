"""HTTP with external parties, which are untrusted: time, redirects, networks, bytes are bounded."""

import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, ReadTimeoutError
from urllib3.exceptions import ProxyError as TunnelError

from edgepack.text import printable
from edgepack.web.clock import describe_invalid_time
from edgepack.web.deadline import (
    DEFAULT_LIMITS,
    Deadline,
    FinalError,
    NetworkError,
    WaitLimits,
)
from edgepack.web.networks import Network, network_of, network_of_name
from edgepack.web.proxy import find_proxy
from edgepack.web.urls import Origin, origin_of, shown_url

MAX_REDIRECTS = 5
BUSY = (429, 502, 503, 504)
"""Statuses that may be others a moment later."""
MAX_BREAKS = 4
"""Times in a row that a body may break off without a byte more."""
MAX_URL = 2048
PIECE_BYTES = 1024 * 1024
_SAID_LETTERS = 200
_REDIRECTS = (301, 302, 303, 307, 308)
_OWN_HEADERS = ("authorization", "cookie")


class WebError(OSError):
    """No answer, or none that is of use.

    Attributes:
        is_final: Whether a retry would fail the same way.
        title: The requested URL without its query, which may hold a secret.
    """

    def __init__(self, because: str, *, title: str, is_final: bool = False) -> None:
        super().__init__(because)
        self.is_final, self.title = is_final, title


class WebAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a client.

    Attributes:
        ca_file: PEM of the authorities to trust; "" trusts the system's.
        ca_pem: The same as text; "" uses `ca_file`.
        cert_file, key_file: PEM files of a client certificate; "" for none.
        proxy: See `edgepack.web.proxy.find_proxy`.
        limits: Of the waits on the other side, over all requests.
        nearest: An address in a nearer network is never connected to.
    """

    ca_file: str = ""
    ca_pem: str = ""
    cert_file: str = ""
    key_file: str = ""
    proxy: str = ""
    limits: WaitLimits = DEFAULT_LIMITS
    nearest: Network = Network.THIS_MACHINE


class Answer:
    """The answer to a request, its body still to be read.

    Attributes:
        status: Of HTTP.
        headers: Of the answer.
        url: The URL that gave the answer, after redirects.
    """

    def __init__(self, inner: urllib3.BaseHTTPResponse, url: str, deadline: Deadline) -> None:
        self.status, self.headers, self.url = inner.status, inner.headers, url
        self._inner, self._deadline = inner, deadline
        self._is_complete = False

    @property
    def length_remaining(self) -> int | None:
        """Bytes that are left of the body; None if the answer does not state its length."""
        return self._inner.length_remaining

    def read1(self, most_bytes: int) -> bytes:
        """Return the next bytes of the body, b"" at its end.

        Raises:
            WebError: The connection broke, or the other side took too long.
        """
        try:
            with self._deadline.counting():
                piece = self._inner.read1(most_bytes) or b""
        except (HTTPError, OSError, ValueError) as error:
            raise _web_error(error, self.url) from error
        self._deadline.earn(len(piece))
        self._is_complete = not piece
        return piece

    def end(self) -> None:
        """Leave the answer. A complete answer earns time.

        An answer that breaks off earns none: a party that sends one byte of each answer would hold
        the client forever.
        """
        is_complete = self._is_complete or self._inner.length_remaining == 0
        self.leave()
        self._deadline.earn(answers=is_complete)

    def leave(self) -> None:
        """Keep the connection if the answer was read to its end, else close the connection."""
        if self._inner.length_remaining == 0:
            self._inner.drain_conn()
            self._inner.release_conn()
        else:
            self._inner.close()


Ask = Callable[[Mapping[str, str]], AbstractContextManager[Answer]]


class Web:
    """A client of an external party, which may redirect to other parties; used by a single thread.

    All waits of the client share a deadline, see `WaitLimits`.

    Args:
        access: Settings.

    Raises:
        OSError: A TLS file cannot be used.
    """

    def __init__(self, access: WebAccess) -> None:
        self._access = access
        self._deadline = Deadline(access.limits)
        self._context: ssl.SSLContext | None = None
        if access.ca_file or access.ca_pem or access.cert_file:
            self._tls_context()  # reports a file that cannot be used at once
        self._pools: dict[tuple[str, bool], urllib3.PoolManager] = {}
        self._pool_classes = _pool_classes(self._open)
        self._nearest = access.nearest
        self._opened: Network | None = None
        self._networks: dict[Origin, Network] = {}

    @contextmanager
    def ask(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] = {},
        body: Any = None,
        redirects: int = MAX_REDIRECTS,
        named_by: str = "",
    ) -> Iterator[Answer]:
        """Send a request and yield its answer, with any status.

        A redirect is followed a few times, never from https to http, and never into a nearer
        network than the first host's: a public server does not lead into this machine. A host
        other than the first gets no credentials.

        Args:
            url: `http://` or `https://`.
            method: Of HTTP.
            headers: Sent along.
            body: Body of the request: bytes, or an open file.
            redirects: How many are followed.
            named_by: URL of a party that was asked before and named this URL: its network bounds
                where this may be, as with a redirect.

        Raises:
            WebError: There is no answer, or the answer is unusable.
        """
        headers = {"Accept-Encoding": "identity", "User-Agent": "edgepack", **headers}
        nearest = max(self._access.nearest, self._network(named_by))
        for _ in range(redirects + 1):
            answer = self._send(url, method, headers, body, nearest)
            target = answer.headers.get("Location") if answer.status in _REDIRECTS else None
            if target is None or redirects == 0:
                break
            answer.leave()
            nearest = max(nearest, self._network(url))
            before, url = url, _follow(url, target)
            if origin_of(url) != origin_of(before):
                headers = {k: v for k, v in headers.items() if k.lower() not in _OWN_HEADERS}
        else:
            raise WebError(
                f"it redirects more than {redirects} times", title=shown_url(url), is_final=True
            )
        try:
            yield answer
        finally:
            answer.end()

    def close(self) -> None:
        """Close the connections that are kept."""
        for pool in self._pools.values():
            pool.clear()

    def _send(
        self, url: str, method: str, headers: Mapping[str, str], body: Any, nearest: Network
    ) -> Answer:
        scheme, host = _split(url)
        try:
            pool = self._pool(scheme, host)
            known = self._networks.get(origin_of(url))
            self._opened = network_of_name(host) if pool.proxy is not None else known
            if self._opened is not None and self._opened < nearest:
                raise NetworkError(f"{host} is {self._opened.title}")
            self._nearest = nearest
            with self._deadline.counting():
                answer = pool.request(
                    method,
                    url,
                    headers=dict(headers),
                    body=body,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
        except (HTTPError, OSError, ValueError) as error:
            raise _web_error(error, url) from error
        if self._opened is not None:
            self._networks[origin_of(url)] = self._opened
        return Answer(answer, url, self._deadline)

    def _tls_context(self) -> ssl.SSLContext:
        """Return the TLS settings; reading the system's authorities takes 25 ms."""
        if self._context is None:
            access = self._access
            context = ssl.create_default_context(
                cafile=access.ca_file or None, cadata=access.ca_pem or None
            )
            if access.cert_file:
                context.load_cert_chain(access.cert_file, access.key_file or None)
            self._context = self._deadline.wrap_tls(context)
        return self._context

    def _network(self, url: str) -> Network:
        """Return where a host that was reached is."""
        return self._networks.get(origin_of(url), Network.THIS_MACHINE)

    def _open(self, host: str, port: int, *, is_proxy: bool) -> socket.socket:
        if is_proxy:
            return self._deadline.connect(host, port)
        opened = self._deadline.connect(host, port, self._nearest)
        self._opened = network_of(str(opened.getpeername()[0]))
        return opened

    def _pool(self, scheme: str, host: str) -> urllib3.PoolManager:
        proxy = find_proxy(scheme, host, self._access.proxy)
        is_tls = scheme == "https" or (proxy is not None and proxy.url.startswith("https:"))
        key = (proxy.url if proxy else "", is_tls)
        if key not in self._pools:
            settings: dict[str, Any] = {"retries": False, "maxsize": 1}
            if is_tls:
                settings["ssl_context"] = self._tls_context()
            if proxy is None:
                self._pools[key] = urllib3.PoolManager(**settings)
            else:
                let_in = {"proxy-authorization": proxy.authorization}
                self._pools[key] = urllib3.ProxyManager(
                    proxy.url, proxy_headers=let_in if proxy.credentials else {}, **settings
                )
            self._pools[key].pool_classes_by_scheme = self._pool_classes
        return self._pools[key]


def _pool_classes(open_socket: Callable[..., socket.socket]) -> dict[str, Any]:
    """Return urllib3's pools by scheme, with connections that `open_socket` makes."""

    class Plain(urllib3.connection.HTTPConnection):
        def _new_conn(self) -> socket.socket:
            is_proxy = self.proxy is not None
            return open_socket(self._dns_host, self.port, is_proxy=is_proxy)

    class Tls(urllib3.connection.HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            is_proxy = self.proxy is not None
            return open_socket(self._dns_host, self.port, is_proxy=is_proxy)

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(urllib3.HTTPSConnectionPool):
        ConnectionCls = Tls

    return {"http": PlainPool, "https": TlsPool}


def read_body(answer: Answer, most_bytes: int, title: str) -> bytes:
    """Return all of a body.

    Raises:
        WebError: The body is too long, or ends before its length.
    """
    content = bytearray()
    while piece := answer.read1(min(64 * 1024, most_bytes + 1 - len(content))):
        content += piece
        _check_length(len(content), most_bytes, title)
    return bytes(content)


def read_whole(ask: Ask, most_bytes: int, title: str) -> Iterator[bytes]:
    """Yield a body piece by piece; after a break, request the missing rest.

    Args:
        ask: Gives the answer for further headers; of status 200, or 206 for a range.
        most_bytes: Maximum length.
        title: Name of the content, for messages.

    Raises:
        WebError: The body is too long, or breaks off repeatedly.
    """
    at = breaks = 0
    while True:
        before = at
        try:
            with ask({"Range": f"bytes={at}-"} if at else {}) as answer:
                for piece in _read_on(answer, at, title):
                    at += len(piece)
                    _check_length(at, most_bytes, title)
                    yield piece
        except WebError as error:
            breaks = 1 if at > before else breaks + 1
            if error.is_final or breaks > MAX_BREAKS:
                raise
        else:
            return


def _read_on(answer: Answer, at: int, title: str) -> Iterator[bytes]:
    """Yield a body from an offset on, with or without range requests."""
    begin = answer.headers.get("Content-Range", "")
    if answer.status == 206 and not begin.startswith(f"bytes {at}-"):
        raise WebError("it sends another range", title=title, is_final=True)
    skipped = 0 if answer.status == 206 else at
    while piece := answer.read1(PIECE_BYTES):
        new = piece[skipped:]
        skipped -= len(piece) - len(new)
        if new:
            yield new


def _check_length(length: int, most_bytes: int, title: str) -> None:
    if length > most_bytes:
        raise WebError(f"it sends more than {most_bytes} bytes", title=title, is_final=True)


def _split(url: str) -> tuple[str, str]:
    try:
        parts = urlsplit(url)
        found = parts.scheme, parts.hostname or ""
    except ValueError:
        found = "", ""
    if found[0] not in ("http", "https") or not found[1] or len(url) > MAX_URL:
        raise WebError("it is not a URL of http or https", title=shown_url(url), is_final=True)
    return found


def _follow(url: str, target: str) -> str:
    title = shown_url(url)
    try:
        found = urljoin(url, target)
        is_weaker = url.startswith("https:") and not found.startswith("https:")
    except ValueError as error:
        raise WebError("it redirects to an invalid URL", title=title, is_final=True) from error
    if is_weaker:
        raise WebError("it redirects from https to another scheme", title=title, is_final=True)
    return found


def _web_error(error: BaseException, url: str) -> WebError:
    """Return the error to raise for an error of urllib3, of TLS or of the network."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, FinalError):
            return WebError(printable(str(seen)), title=shown_url(url), is_final=True)
        seen = _inner(seen)
    return WebError(_because(error), title=shown_url(url))


def _inner(error: BaseException) -> BaseException | None:
    """Return the error that another error wraps."""
    inner = error.__cause__ or error.__context__
    if inner is None and isinstance(error, TunnelError | NewConnectionError):
        inner = getattr(error, "original_error", None)
    return inner


def _because(error: BaseException) -> str:
    """Return the useful part of an error that wraps others."""
    seen: BaseException | None = error
    while seen is not None:
        if invalid := describe_invalid_time(seen, time.time()):
            return invalid
        if isinstance(seen, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {printable(seen.verify_message)}"
        if isinstance(seen, ssl.SSLError) and seen.reason == "WRONG_VERSION_NUMBER":
            return "it speaks no TLS"
        if isinstance(seen, OSError) and not isinstance(seen, ssl.SSLError) and seen.strerror:
            return printable(seen.strerror)
        if isinstance(seen, ReadTimeoutError | TimeoutError):
            return "it does not answer"
        if isinstance(seen, http.client.BadStatusLine):
            is_gone = isinstance(seen, http.client.RemoteDisconnected)
            return "it hangs up" if is_gone else "it speaks no HTTP"
        inner = _inner(seen)
        if inner is None:
            break
        seen = inner
    return printable(str(seen or error)[:_SAID_LETTERS]) or type(error).__name__
