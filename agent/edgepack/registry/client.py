"""A client of registries (OCI distribution specification 1.1): blobs, manifests, credentials.

Credentials and tokens belong to the registry that the reference names, by scheme, host and port:

1. Only a request to that registry carries credentials. A redirect to another host carries none, nor
   does an upload to a location on another host.
2. Only a challenge of that registry is answered. The challenge of a host behind a redirect is
  ignored.
3. The password goes to a token server only if that registry itself names the server, by https. A
   registry without TLS can name a token server only on its own host.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

import msgspec

from edgepack.decoding import decode_json
from edgepack.errors import TransferError
from edgepack.registry.credentials import HOST, PASSWORD, USER, find_credentials
from edgepack.registry.reference import Reference
from edgepack.text import printable
from edgepack.web.http import Answer, Web, WebAccess, WebError, read_body, read_whole
from edgepack.web.urls import origin_of, shown_url

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Of a manifest, as the specification has it; what else is said is shorter."""
_CHALLENGE = re.compile(r'([a-zA-Z_]{1,32})="([^"]{0,2000})"')
_MOST_TOKEN_LETTERS = 16 * 1024
_SAID_BYTES = 1000


class _Said(msgspec.Struct, kw_only=True):
    code: str = ""
    message: str = ""


class _Errors(msgspec.Struct, kw_only=True):
    errors: tuple[_Said, ...] = ()


class _Token(msgspec.Struct, kw_only=True):
    token: str = ""
    access_token: str = ""


class Registry:
    """A client of a repository.

    Args:
        reference: Reference of the repository.
        access: How to get through.
        http_unsafe: Uses http, without TLS: anyone in between reads and alters all content.

    Raises:
        TransferError: A TLS file or docker's settings cannot be used.
    """

    def __init__(
        self, reference: Reference, *, access: WebAccess | None = None, http_unsafe: bool = False
    ) -> None:
        self._reference = reference
        self._scheme = "http" if http_unsafe else "https"
        self._base = f"{self._scheme}://{reference.host}/v2/{reference.repository}"
        self._origin = origin_of(self._base)
        self._authorization = ""
        try:
            self._web = Web(access or WebAccess())
        except OSError as error:
            raise TransferError(f"the TLS files cannot be used: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        self._web.close()

    def read_manifest(self, name: str) -> bytes:
        """Return the bytes of a manifest; bytes requested by digest match the digest.

        Raises:
            TransferError: The manifest is missing, too long, or differs from the digest.
        """
        url = f"{self._base}/manifests/{name}"
        with self._ask("GET", url, {"Accept": MANIFEST_TYPE}) as answer:
            self._check(answer, url, 200)
            content = read_body(answer, MAX_ANSWER_BYTES, shown_url(url))
        if name.startswith("sha256:") and digest_of(content) != name:
            raise TransferError("the registry sent another manifest", found_in=shown_url(url))
        return content

    def write_manifest(self, name: str, content: bytes) -> None:
        """Store a manifest under a tag or its digest.

        Raises:
            TransferError: The registry rejects the content.
        """
        url = f"{self._base}/manifests/{name}"
        with self._ask("PUT", url, {"Content-Type": MANIFEST_TYPE}, content) as answer:
            self._check(answer, url, 201)

    def has_blob(self, digest: str) -> bool:
        """Return True if a blob is there already.

        Raises:
            TransferError: The registry does not answer, or lets nobody ask.
        """
        url = f"{self._base}/blobs/{digest}"
        with self._ask("HEAD", url) as answer:
            if answer.status == 404:
                return False
            self._check(answer, url, 200)
        return True

    def write_blob(self, digest: str, content: bytes | Path) -> None:
        """Send a blob in a single request.

        Raises:
            TransferError: The registry rejects the content.
        """
        url = f"{self._base}/blobs/uploads/"
        with self._ask("POST", url, {"Content-Length": "0"}) as answer:
            self._check(answer, url, 202)
            location = urljoin(url, answer.headers.get("Location", ""))
        if location.split(":")[0] != self._scheme:
            raise TransferError(
                "the registry takes uploads elsewhere", found_in=shown_url(location)
            )
        location += f"{'&' if urlsplit(location).query else '?'}digest={quote(digest)}"
        headers = {"Content-Type": "application/octet-stream"}
        if isinstance(content, bytes):
            with self._ask("PUT", location, headers, content) as answer:
                self._check(answer, location, 201)
            return
        headers["Content-Length"] = str(content.stat().st_size)
        with content.open("rb") as file, self._ask("PUT", location, headers, file) as answer:
            self._check(answer, location, 201)

    def read_blob(self, digest: str, size_bytes: int, write: Callable[[bytes], object]) -> None:
        """Read a blob piece by piece, and continue after a break.

        Args:
            digest: `sha256:…`
            size_bytes: Length of the blob; further bytes are not read.
            write: Gets each piece.

        Raises:
            TransferError: The blob is missing, differs from the digest, or is too short.
        """
        url = f"{self._base}/blobs/{digest}"
        title, at, hashed = shown_url(url), 0, hashlib.sha256()

        @contextmanager
        def ask(headers: Mapping[str, str]) -> Iterator[Answer]:
            with self.ask(url, headers) as answer:
                if answer.status != 206 or not headers:
                    self._check(answer, url, 200)
                yield answer

        try:
            for piece in read_whole(ask, size_bytes, title):
                write(piece)
                hashed.update(piece)
                at += len(piece)
        except WebError as error:
            raise TransferError(f"a file cannot be fetched: {error}", found_in=title) from error
        if at != size_bytes or f"sha256:{hashed.hexdigest()}" != digest:
            raise TransferError("the registry sent other bytes than requested", found_in=title)

    def ask(self, url: str, headers: Mapping[str, str]) -> AbstractContextManager[Answer]:
        """Return the answer to a request for a URL of this registry, with any status.

        Raises:
            WebError: The registry cannot be reached.
            TransferError: The registry denies access.
        """
        return self._ask("GET", url, headers, passes_breaks=True)

    @contextmanager
    def _ask(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] = {},
        body: Any = None,
        *,
        passes_breaks: bool = False,
    ) -> Iterator[Answer]:
        """Yield an answer; if the registry requests credentials, repeat the request with
        credentials.
        """
        try:
            with self._send(method, url, headers, body) as answer:
                challenge = answer.headers.get("WWW-Authenticate", "")[:4000]
                # 2.
                is_own = origin_of(answer.url) == self._origin
                if answer.status != 401 or not is_own or not self._log_in(challenge):
                    yield answer
                    return
            if body is not None and hasattr(body, "seek"):
                body.seek(0)
            with self._send(method, url, headers, body) as answer:
                yield answer
        except WebError as error:
            if passes_breaks:
                raise
            raise TransferError(
                f"the registry cannot be asked: {error}", found_in=error.title
            ) from error

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: Any) -> Any:
        # 1.
        is_own = origin_of(url) == self._origin
        sent = {"Authorization": self._authorization} if self._authorization and is_own else {}
        redirects = 0 if method in ("PUT", "POST") else 5
        return self._web.ask(
            url,
            method=method,
            headers={**headers, **sent},
            body=body,
            redirects=redirects,
            named_by="" if is_own else self._base,
        )

    def _log_in(self, challenge: str) -> bool:
        """Find the credentials for a challenge; return False without new credentials."""
        kind, _, rest = challenge.partition(" ")
        before, credentials = self._authorization, find_credentials(self._reference.host)
        if kind.lower() == "basic" and credentials:
            self._authorization = _basic(credentials)
        elif kind.lower() == "bearer":
            self._authorization = (
                f"Bearer {self._token(dict(_CHALLENGE.findall(rest)), credentials)}"
            )
        return self._authorization != before

    def _token(self, asked: dict[str, str], credentials: str) -> str:
        realm = asked.get("realm", "")
        # 3.
        server = origin_of(realm)
        if self._scheme == "https":
            because = "" if server.scheme == "https" else "its URL does not begin with https://"
        else:
            is_near = server.host == self._origin.host
            because = "" if is_near else "the registry is without TLS, and it is on another host"
        if because:
            raise TransferError(
                f"the registry names a token server that is not asked: {because}",
                found_in=shown_url(realm),
            )
        words = {key: value for key, value in asked.items() if key in ("service", "scope")}
        url = f"{realm}{'&' if urlsplit(realm).query else '?'}{urlencode(words)}"
        headers = {"Authorization": _basic(credentials)} if credentials else {}
        with self._web.ask(url, headers=headers, named_by=self._base) as answer:
            self._check(answer, realm, 200)
            content = read_body(answer, MAX_ANSWER_BYTES, shown_url(realm))
        try:
            found = decode_json(content, _Token)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TransferError(
                "the server of tokens gave none", found_in=shown_url(realm)
            ) from error
        token = found.token or found.access_token
        if (
            not token
            or len(token) > _MOST_TOKEN_LETTERS
            or not token.isascii()
            or not token.isprintable()
        ):
            raise TransferError("the server of tokens gave none", found_in=shown_url(realm))
        return token

    def _check(self, answer: Answer, url: str, wanted: int) -> None:
        if answer.status == wanted:
            return
        title = shown_url(url)
        if answer.status in (401, 403):
            host = self._reference.host
            if origin_of(answer.url) != self._origin:
                raise TransferError(
                    f"another host than {host} requests credentials (HTTP status {answer.status}); "
                    f"the credentials of {host} are not sent there",
                    found_in=shown_url(answer.url),
                )
            raise TransferError(
                f"the registry does not allow this (HTTP status {answer.status})",
                found_in=title,
                remedy=f"docker login {host}, or set {HOST}={host}, {USER} and {PASSWORD}",
            )
        said = f"HTTP status {answer.status}{_reason(answer)}"
        if answer.status == 404:
            raise TransferError(f"the registry does not have this content ({said})", found_in=title)
        raise TransferError(f"the registry refuses: {said}", found_in=title)


def digest_of(content: bytes) -> str:
    """Return the digest by which a registry names bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _basic(credentials: str) -> str:
    content = credentials.encode("utf-8", "surrogateescape")
    return f"Basic {base64.b64encode(content).decode()}"


def _reason(answer: Answer) -> str:
    """Return a registry's reason for a rejection, made printable; "" without a reason."""
    try:
        said = decode_json(answer.read1(64 * 1024) or b"{}", _Errors)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError):
        return ""
    texts = [one.message or one.code for one in said.errors]
    return printable(f": {'; '.join(texts)}"[:_SAID_BYTES]) if texts else ""
