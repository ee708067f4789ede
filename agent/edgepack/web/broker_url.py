"""URLs of a broker: `mqtt://`, `mqtts://`, or `ws://` and `wss://` through the web's port."""

from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec


class _Scheme(NamedTuple):
    port: int
    is_tls: bool
    is_web: bool


SCHEMES = {
    "mqtt": _Scheme(1883, is_tls=False, is_web=False),
    "mqtts": _Scheme(8883, is_tls=True, is_web=False),
    "ws": _Scheme(80, is_tls=False, is_web=True),
    "wss": _Scheme(443, is_tls=True, is_web=True),
}
WEB_PATH = "/mqtt"
"""Where EMQX, HiveMQ and mosquitto's manual have it; for a URL that names no path."""


class BrokerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's URL, read.

    Attributes:
        scheme: `mqtt`, `mqtts`, `ws` or `wss`.
        host, port: Address of the broker.
        path: Path of a WebSocket, with its query; "" without a WebSocket.
    """

    scheme: str
    host: str
    port: int
    path: str = ""

    @property
    def is_tls(self) -> bool:
        """True if TLS is spoken."""
        return SCHEMES[self.scheme].is_tls

    @property
    def is_web(self) -> bool:
        """True if MQTT travels in a WebSocket."""
        return SCHEMES[self.scheme].is_web

    @property
    def title(self) -> str:
        """Host and port, for logs."""
        return f"{self.host}:{self.port}"


def read_broker_urls(url: str) -> tuple[BrokerAddress, ...]:
    """Read a broker's URL, which may name several nodes: `mqtts://one:8883,two:8883`.

    Raises:
        ValueError: The URL is invalid.
    """
    scheme, _, rest = url.partition("://")
    end = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    nodes = rest[:end].split(",")
    return tuple(read_broker_url(f"{scheme}://{node}{rest[end:]}") for node in nodes)


def read_broker_url(url: str) -> BrokerAddress:
    """Read the URL of a node.

    Raises:
        ValueError: The URL is invalid.
    """
    parts = urlsplit(url)
    scheme = SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname or "@" in parts.netloc or parts.netloc.endswith(":"):
        raise ValueError("no URL of a broker")
    path = ""
    if scheme.is_web:
        path = (parts.path or WEB_PATH) + (f"?{parts.query}" if parts.query else "")
        if not path.isascii() or not path.isprintable() or " " in path:
            raise ValueError("no path of a WebSocket")
    return BrokerAddress(
        scheme=parts.scheme, host=parts.hostname, port=parts.port or scheme.port, path=path
    )
