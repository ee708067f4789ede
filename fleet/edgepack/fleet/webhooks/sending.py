"""One message on its way: signed as Standard Webhooks has it, posted where it may go.

    webhook-id: the same each time that a message is sent again
    webhook-timestamp: seconds since the epoch
    webhook-signature: v1,BASE64(HMAC-SHA256(secret, "ID.TIMESTAMP.BODY"))

Whoever makes a webhook makes this server send requests. So it must not lead to what only this
server can reach: an address is looked up once, judged, and that very address is connected to; no
redirect is followed, and nothing of an answer but its status is kept.
"""

import base64
import binascii
import contextlib
import hashlib
import hmac
import http.client
import ipaddress
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import msgspec

from edgepack.errors import FleetError
from edgepack.text import printable

PREFIX = "whsec_"
SECRET_BYTES = 32
TIMEOUT_S = 10.0
MOST_S = 20.0
"""How long a message may take at all, however slowly the receiver speaks."""
_PORTS = {"https": 443, "http": 80}
_REMEDY = "edgepack fleet webhooks add NAME --to https://hooks.example/edgepack"

Resolve = Callable[[str, int], Sequence[str]]
"""Gives the IP addresses of a host."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where messages go.

    Attributes:
        host, port: Of the receiver.
        path: With its query.
        is_tls: Whether it is reached by https.
    """

    host: str
    port: int
    path: str
    is_tls: bool

    @property
    def title(self) -> str:
        """Host, and the port where it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            host
            if self.port == _PORTS["https" if self.is_tls else "http"]
            else f"{host}:{self.port}"
        )


def make_secret() -> str:
    """A new secret: 32 random bytes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`.

    Raises:
        ValueError: The secret is none.
    """
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError("no secret of a webhook") from error
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def read_target(url: str, *, is_unsafe: bool) -> Target:
    """Reads a webhook's URL.

    Args:
        url: The URL.
        is_unsafe: Whether it may be without TLS.

    Raises:
        FleetError: It is none that a webhook may have.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FleetError(f"{url[:80]!a} is no URL", remedy=_REMEDY) from error
    if parts.scheme not in _PORTS or not parts.hostname or not url.isascii() or " " in url:
        raise FleetError(f"{url[:80]!a} is no https:// URL", remedy=_REMEDY)
    if not url.isprintable() or "@" in parts.netloc or "#" in url:
        raise FleetError("a webhook's URL has no user, fragment or control letters", remedy=_REMEDY)
    if parts.scheme == "http" and not is_unsafe:
        raise FleetError(
            "a webhook without TLS can be read, and altered, on its way",
            remedy="give an https:// URL, or take the risk with --unsafe",
        )
    return Target(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        path=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        is_tls=parts.scheme == "https",
    )


def find_addresses(
    target: Target, *, is_unsafe: bool, resolve: Resolve | None = None
) -> Sequence[str]:
    """The addresses of a receiver, all of them such as messages may go to.

    Raises:
        FleetError: It has none, or one in a private network, unless that is allowed.
    """
    try:
        found = (resolve or _resolve)(target.host, target.port)
    except OSError as error:
        raise FleetError(f"{target.host} has no address: {error.strerror or error}") from error
    for address in found:
        if not is_unsafe and not _is_public(address):
            raise FleetError(
                f"{target.host} is in a private network ({address})",
                remedy="webhooks go there only with --unsafe",
            )
    if not found:
        raise FleetError(f"{target.host} has no address")
    return found


def post(target: Target, addresses: Sequence[str], headers: dict[str, str], body: bytes) -> int:
    """Posts a message; gives the status that the receiver answered.

    Raises:
        OSError: Nobody answers in time, or TLS fails.
        http.client.HTTPException: What answers is no HTTP.
    """
    opened = _connect(target, addresses)
    if target.is_tls:
        context = ssl.create_default_context()
        opened = context.wrap_socket(
            opened, server_hostname=target.host, do_handshake_on_connect=False
        )
    deadline = threading.Timer(MOST_S, _cut, (opened,))
    deadline.daemon = True
    deadline.start()
    connection = http.client.HTTPConnection(target.host, target.port)
    connection.sock = opened
    try:
        if isinstance(opened, ssl.SSLSocket):
            opened.do_handshake()
        headers = {"Host": target.title, **headers}
        connection.request("POST", target.path, body=body, headers=headers)
        return connection.getresponse().status
    finally:
        deadline.cancel()
        connection.close()


def why(error: Exception) -> str:
    """Why a message could not be posted, in a few letters that can be shown."""
    said = getattr(error, "problem", "") or getattr(error, "strerror", "") or str(error)
    return printable(said or type(error).__name__)


def _connect(target: Target, addresses: Sequence[str]) -> socket.socket:
    for left, address in zip(reversed(range(len(addresses))), addresses, strict=True):
        try:
            return socket.create_connection((address, target.port), TIMEOUT_S)
        except OSError:
            if not left:
                raise
    raise OSError("no address")


def _cut(opened: socket.socket) -> None:
    # The socket's own, since that of TLS takes away what another thread reads with.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(opened, socket.SHUT_RDWR)


def _resolve(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        # Addresses of IPv4 in other clothes.
        inner = found.ipv4_mapped or found.sixtofour
        if inner is not None:
            found = inner
        elif found in _NAT64:
            found = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.is_global and not found.is_multicast and not found.is_reserved


_NAT64 = ipaddress.ip_network("64:ff9b::/96")
