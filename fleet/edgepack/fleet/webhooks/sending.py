"""Delivery of a message: signed by the Standard Webhooks format, posted to an allowed address.

    webhook-id: the same each time that a message is sent again
    webhook-timestamp: seconds since the epoch
    webhook-signature: v1,BASE64(HMAC-SHA256(secret, "ID.TIMESTAMP.BODY"))

A webhook makes this server send requests, so its URL must not lead to hosts that only this server
can reach. The address is looked up once and checked, and the connection goes to that address. No
redirect is followed, and only the status of an answer is kept.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from urllib.parse import urlsplit

import msgspec

from edgepack.errors import FleetError
from edgepack.text import printable
from edgepack.web.deadline import Deadline, WaitLimits
from edgepack.web.http import Web, WebAccess
from edgepack.web.networks import Network, network_of
from edgepack.web.proxy import DIRECT

PREFIX = "whsec_"
SECRET_BYTES = 32
LIMITS = WaitLimits(connect_s=10, idle_s=10, total_s=20, request_s=0, least_bytes_per_s=0)
_PORTS = {"https": 443, "http": 80}
_REMEDY = "edgepack fleet webhooks add NAME --to https://hooks.example/edgepack"

Resolve = Callable[[str, int], Sequence[str]]
"""Gives the IP addresses of a host."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Target of messages.

    Attributes:
        host, port: Of the receiver.
        path: With its query.
        is_tls: Whether the URL is https.
    """

    host: str
    port: int
    path: str
    is_tls: bool

    @property
    def title(self) -> str:
        """Host, and the port if not the default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            host
            if self.port == _PORTS["https" if self.is_tls else "http"]
            else f"{host}:{self.port}"
        )


def make_secret() -> str:
    """Return a new secret: 32 random bytes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of `webhook-signature`.

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
    """Read a webhook's URL.

    Args:
        url: The URL.
        is_unsafe: Whether the URL may be without TLS.

    Raises:
        FleetError: The URL is not allowed for webhooks.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FleetError(f"{url[:80]!a} is not a URL", remedy=_REMEDY) from error
    if parts.scheme not in _PORTS or not parts.hostname or not url.isascii() or " " in url:
        raise FleetError(f"{url[:80]!a} is not an https:// URL", remedy=_REMEDY)
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
    """Return the addresses of a receiver, all of them allowed for messages.

    Raises:
        FleetError: The receiver has no address, or an address in a private network without
            permission.
    """
    try:
        found = (resolve or _resolve)(target.host, target.port)
    except OSError as error:
        raise FleetError(f"{target.host} has no address: {error.strerror or error}") from error
    for address in found:
        if not is_unsafe and network_of(address) < Network.PUBLIC:
            raise FleetError(
                f"{target.host} is in a private network ({address})",
                remedy="webhooks go there only with --unsafe",
            )
    if not found:
        raise FleetError(f"{target.host} has no address")
    return found


def post(
    url: str,
    headers: dict[str, str],
    body: bytes,
    *,
    is_unsafe: bool,
    limits: WaitLimits = LIMITS,
) -> int:
    """Post a message and return the HTTP status of the answer.

    The addresses are judged once more, and a judged address is connected to: a name may have
    another address by now.

    Raises:
        OSError: No answer in time, none of HTTP, or an address that is not allowed.
    """
    nearest = Network.THIS_MACHINE if is_unsafe else Network.PUBLIC
    access = WebAccess(proxy=DIRECT, limits=limits, nearest=nearest)
    with (
        closing(Web(access)) as web,
        web.ask(url, method="POST", headers=headers, body=body, redirects=0) as answer,
    ):
        return answer.status


def why(error: Exception) -> str:
    """Return why a message could not be posted, short and printable."""
    said = getattr(error, "problem", "") or getattr(error, "strerror", "") or str(error)
    return printable(said or type(error).__name__)


def _resolve(host: str, port: int) -> Sequence[str]:
    found = Deadline(LIMITS).find_addresses(host, port)
    return tuple(dict.fromkeys(str(address[0]) for _, address in found))
