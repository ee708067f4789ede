"""HTTP among strangers: bounded in time, in redirects and in bytes, and believed in nothing."""

import http.client
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, NewConnectionError, ReadTimeoutError
from urllib3.exceptions import ProxyError as TunnelError

from edgepack.text import printable
from edgepack.web.proxy import find_proxy
from edgepack.web.urls import shown_url

CONNECT_S = 10.0
READ_S = 30.0
"""Without one byte."""
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

Answer = urllib3.BaseHTTPResponse
Ask = Callable[[Mapping[str, str]], AbstractContextManager[Answer]]


class WebError(OSError):
    """No answer, or none that is of use.

    Attributes:
        is_final: Whether it would be the same a moment later.
        title: What was asked for: the URL without its query, which may hold a secret.
    """

    def __init__(self, because: str, *, title: str, is_final: bool = False) -> None:
        super().__init__(because)
        self.is_final, self.title = is_final, title


class WebAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How to get in, and through.

    Attributes:
        ca_file: PEM of the authorities to trust; "" trusts the system's.
        cert_file, key_file: PEM files of a client certificate; "" for none.
        proxy: See `edgepack.web.proxy.find_proxy`.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    proxy: str = ""


class Web:
    """A client that keeps its connections.

    Args:
        access: How to get in.
        read_s: How long the other side may say nothing.

    Raises:
        OSError: A TLS file cannot be used.
    """

    def __init__(self, access: WebAccess, *, read_s: float = READ_S) -> None:
        self._access = access
        context = ssl.create_default_context(cafile=access.ca_file or None)
        if access.cert_file:
            context.load_cert_chain(access.cert_file, access.key_file or None)
        self._settings: dict[str, Any] = {
            "ssl_context": context,
            "timeout": urllib3.Timeout(connect=CONNECT_S, read=read_s),
            "retries": False,
            "maxsize": 1,
        }
        self._pools: dict[str, urllib3.PoolManager] = {}

    @contextmanager
    def ask(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] = {},
        body: Any = None,
        redirects: int = MAX_REDIRECTS,
    ) -> Iterator[Answer]:
        """The answer to a request, whatever its status, its body still to be read.

        A redirect is followed a few times, never from https to http; who is not the first host gets
        no credentials.

        Args:
            url: `http://` or `https://`.
            method: Of HTTP.
            headers: Sent along.
            body: What is sent: bytes, or a file that is open.
            redirects: How many are followed.

        Raises:
            WebError: It cannot be reached, or leads nowhere.
        """
        headers = {"Accept-Encoding": "identity", "User-Agent": "edgepack", **headers}
        for _ in range(redirects + 1):
            answer = self._send(url, method, headers, body)
            target = answer.headers.get("Location") if answer.status in _REDIRECTS else None
            if target is None or redirects == 0:
                break
            self._end(answer)
            before, url = urlsplit(url), _follow(url, target)
            after = urlsplit(url)
            if (after.scheme, after.netloc) != (before.scheme, before.netloc):
                headers = {k: v for k, v in headers.items() if k.lower() not in _OWN_HEADERS}
        else:
            raise WebError(
                f"it redirects more than {redirects} times", title=shown_url(url), is_final=True
            )
        try:
            yield answer
        except HTTPError as error:
            raise WebError(_because(error), title=shown_url(url)) from error
        finally:
            self._end(answer)

    def close(self) -> None:
        """Ends the connections that are kept."""
        for pool in self._pools.values():
            pool.clear()

    def _send(self, url: str, method: str, headers: Mapping[str, str], body: Any) -> Answer:
        scheme, host = _split(url)
        try:
            return self._pool(scheme, host).request(
                method,
                url,
                headers=dict(headers),
                body=body,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
        except (HTTPError, OSError, ValueError) as error:
            raise WebError(_because(error), title=shown_url(url)) from error

    def _pool(self, scheme: str, host: str) -> urllib3.PoolManager:
        proxy = find_proxy(scheme, host, self._access.proxy)
        key = proxy.url if proxy else ""
        if key not in self._pools:
            if proxy is None:
                self._pools[key] = urllib3.PoolManager(**self._settings)
            else:
                let_in = {"proxy-authorization": proxy.authorization}
                self._pools[key] = urllib3.ProxyManager(
                    proxy.url, proxy_headers=let_in if proxy.credentials else {}, **self._settings
                )
        return self._pools[key]

    @staticmethod
    def _end(answer: Answer) -> None:
        """A connection is kept where its answer was read to the end."""
        if answer.length_remaining == 0:
            answer.drain_conn()
            answer.release_conn()
        else:
            answer.close()


def read_body(answer: Answer, most_bytes: int, title: str) -> bytes:
    """All of a body.

    Raises:
        WebError: It is longer, or ends before its length.
    """
    content = b""
    while piece := answer.read1(min(64 * 1024, most_bytes + 1 - len(content))):
        content += piece
        _check_length(len(content), most_bytes, title)
    return content


def read_whole(ask: Ask, most_bytes: int, title: str) -> Iterator[bytes]:
    """A body piece by piece; where it breaks off, what is missing of it is asked for.

    Args:
        ask: Gives the answer for further headers; of status 200, or 206 where they have a range.
        most_bytes: How long it may be.
        title: What is read, for messages.

    Raises:
        WebError: It is longer, or breaks off again and again.
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
    """What a body has from a place on, whether or not the server has ranges."""
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
        raise WebError("it is no URL of http or https", title=shown_url(url), is_final=True)
    return found


def _follow(url: str, target: str) -> str:
    title = shown_url(url)
    try:
        found = urljoin(url, target)
        is_weaker = url.startswith("https:") and not found.startswith("https:")
    except ValueError as error:
        raise WebError("it redirects to what is no URL", title=title, is_final=True) from error
    if is_weaker:
        raise WebError("it redirects from https to what is none", title=title, is_final=True)
    return found


def _because(error: BaseException) -> str:
    """What a person can do something with of an error that wraps others."""
    seen: BaseException | None = error
    while seen is not None:
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
        inner = seen.__cause__ or seen.__context__
        if inner is None and isinstance(seen, TunnelError | NewConnectionError):
            inner = getattr(seen, "original_error", None)
        if inner is None:
            break
        seen = inner
    return printable(str(seen or error)[:_SAID_LETTERS]) or type(error).__name__
