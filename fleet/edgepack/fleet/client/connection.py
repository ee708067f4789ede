"""HTTP to a running fleet, over the standard library alone."""

import contextlib
import http.client
import io
import logging
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

import msgspec

from edgepack.decoding import decode_json
from edgepack.errors import FleetError
from edgepack.fleet.data_folder import default_root, token_file
from edgepack.fleet.documents.fleet import Refusal
from edgepack.web.urls import origin_of

T = TypeVar("T")

log = logging.getLogger(__name__)

URL_VARIABLE, TOKEN_VARIABLE = "EDGEPACK_FLEET_URL", "EDGEPACK_FLEET_TOKEN"
DATA_VARIABLE, CA_VARIABLE = "EDGEPACK_FLEET_DATA", "EDGEPACK_FLEET_CA"
DEFAULT_URL = "http://127.0.0.1:8600"
_TIMEOUT_S = 60.0
_UPLOAD_TIMEOUT_S = 900.0
_PIECE_BYTES = 1024 * 1024
AWAY_S = 600.0
"""How long a watcher waits for a fleet that restarts."""
_AGAIN_S = 1.0
_PROXY_SAYS_AWAY = (502, 503, 504)


class FleetAwayError(FleetError):
    """Nobody answers where the fleet should serve."""


class Connection:
    """Connection to a fleet with its token; each request opens a connection.

    Args:
        url: Where the fleet serves.
        token: The API's bearer token.
        timeout_s: How long an answer may take.

    Raises:
        FleetError: The URL is none.
    """

    def __init__(self, url: str, token: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        scheme, self._host, self._port = origin_of(url)
        if not self._host:
            raise FleetError(
                f"{url!r} is not a URL of a fleet", remedy=f"{URL_VARIABLE}={DEFAULT_URL}"
            )
        self.url = url.rstrip("/")
        self._context = _trusted() if scheme == "https" else None
        self._token = token

    def get(self, path: str, kind: type[T], **query: str | int) -> T:
        """Ask for something.

        Raises:
            FleetError: Nobody serves there, or the fleet refuses and says why.
        """
        full = f"{path}?{urlencode(query)}" if query else path
        return self._ask("GET", full, kind)

    def pages(self, path: str, kind: type[T], key: Callable[[T], str], **query: str) -> Iterator[T]:
        """Request page after page until a page is empty; raise as `get` does.

        Args:
            path: Of the list.
            kind: Type of the list's entries.
            key: Returns the query value for the next page, from the last entry of a page.
            query: Further query values.
        """
        after = ""
        while page := self.get(path, tuple[kind, ...], after=after, **query):  # type: ignore[valid-type]
            yield from page
            after = key(page[-1])

    def post(self, path: str, kind: type[T], body: msgspec.Struct | None = None) -> T:
        """Ask the fleet to do something; raise as `get` does."""
        return self._ask("POST", path, kind, msgspec.json.encode(body) if body else b"")

    def delete(self, path: str, kind: type[T]) -> T:
        """Ask the fleet to forget something; raise as `get` does."""
        return self._ask("DELETE", path, kind)

    def upload(self, path: str, kind: type[T], file: Path) -> T:
        """Send a file; raise as `get` does."""
        size = file.stat().st_size
        with file.open("rb") as content:
            return self._ask("POST", path, kind, content, size, _UPLOAD_TIMEOUT_S)

    def _open(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._context is not None:
            return http.client.HTTPSConnection(
                self._host,
                self._port,
                timeout=timeout_s,
                blocksize=_PIECE_BYTES,
                context=self._context,
            )
        return http.client.HTTPConnection(
            self._host, self._port, timeout=timeout_s, blocksize=_PIECE_BYTES
        )

    def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: bytes | io.BufferedReader = b"",
        size: int | None = None,
        timeout_s: float = 0.0,
    ) -> T:
        connection = self._open(timeout_s or self._timeout_s)
        headers = {"Authorization": f"Bearer {self._token}"}
        if size is not None:
            headers["Content-Length"] = str(size)
        try:
            status, content = _exchange(connection, method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            raise FleetAwayError(
                f"no fleet answers: {_reason(error)}",
                found_in=self.url,
                remedy=f"edgepack fleet serve, or set {URL_VARIABLE} to where one runs",
            ) from error
        finally:
            connection.close()
        if status != http.client.OK:
            raise _refused(status, content, self.url)
        try:
            return decode_json(content, kind)
        except msgspec.DecodeError as error:
            raise FleetError(
                f"the answer is not from a fleet of this version: {error}", found_in=self.url
            ) from error


def ask_patiently(ask: Callable[[], T], patience_s: float = AWAY_S) -> T:
    """Ask a fleet that may restart meanwhile.

    Args:
        ask: Sends a request that changes nothing.
        patience_s: How long to repeat the request while nobody answers, seconds.

    Raises:
        FleetError: The fleet refuses the request, or stays away.
    """
    until = time.monotonic() + patience_s
    is_told = False
    while True:
        try:
            return ask()
        except FleetAwayError as error:
            if time.monotonic() >= until:
                raise
            if not is_told:
                log.warning("%s; asking again for %.0f s", error.problem, patience_s)
            is_told = True
            time.sleep(_AGAIN_S)


def connect(
    url: str | None, data: Path | None, token: str | None, timeout_s: float = _TIMEOUT_S
) -> Connection:
    """Return a connection from the arguments, else from the environment, else from the defaults.

    Args:
        url: Where the fleet serves.
        data: The fleet's folder, which holds the token.
        token: The token itself.
        timeout_s: How long an answer may take.

    Raises:
        FleetError: There is no token, or the URL is none.
    """
    url = url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    token = token or os.environ.get(TOKEN_VARIABLE)
    if not token:
        token = _read_token(data or Path(os.environ.get(DATA_VARIABLE) or default_root()))
    return Connection(url, token, timeout_s)


def _trusted() -> ssl.SSLContext:
    """Return the TLS context: trust in the system authorities or those in a file."""
    path = os.environ.get(CA_VARIABLE)
    try:
        return ssl.create_default_context(cafile=path or None)
    except OSError as error:
        raise FleetError(
            f"the authorities cannot be read: {error.strerror or error}",
            found_in=f"{CA_VARIABLE}={path}",
        ) from error


def _exchange(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | io.BufferedReader,
    headers: dict[str, str],
) -> tuple[int, bytes]:
    # A fleet that refuses before it has read the whole upload still answers why.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.request(method, path, body=body, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def _refused(status: int, content: bytes, url: str) -> FleetError:
    try:
        refusal = decode_json(content, Refusal)
    except msgspec.DecodeError:
        kind = FleetAwayError if status in _PROXY_SAYS_AWAY else FleetError
        return kind(f"the fleet answered with HTTP status {status}", found_in=url)
    found_in = url if status == http.client.UNAUTHORIZED else refusal.found_in
    return FleetError(refusal.problem, found_in=found_in, remedy=refusal.remedy)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError | socket.timeout):
        return "no answer in time"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def _read_token(data: Path) -> str:
    try:
        return token_file(data).read_text().strip()
    except OSError as error:
        raise FleetError(
            f"there is no token for the fleet: {error.strerror}",
            found_in=str(token_file(data)),
            remedy=f"edgepack fleet serve makes it; name its folder with --data, "
            f"or set {TOKEN_VARIABLE}",
        ) from error
