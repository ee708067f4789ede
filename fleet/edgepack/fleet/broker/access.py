"""Which broker, and how to get in."""

import socket
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from edgepack.errors import TransferError
from edgepack.fleet.broker.quick_client import QuickClient


class BrokerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Which broker, and how to get in.

    Attributes:
        url: `mqtt://host:port` or `mqtts://host:port`.
        ca_file, cert_file, key_file: PEM files for TLS; None where none is used.
        username, password: For brokers with passwords.
    """

    url: str
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    username: str = ""
    password: str = ""

    @property
    def is_tls(self) -> bool:
        """Whether the broker is reached over TLS."""
        return self.url.startswith("mqtts://")

    def address(self) -> tuple[str, int]:
        """Host and port.

        Raises:
            TransferError: The URL is none of a broker.
        """
        try:
            parts = urlsplit(self.url)
            port = parts.port or (8883 if parts.scheme == "mqtts" else 1883)
        except ValueError as error:
            raise _bad_url(self.url) from error
        if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or parts.username:
            raise _bad_url(self.url)
        return parts.hostname, port


def _bad_url(url: str) -> TransferError:
    return TransferError(f"{url!r} is no broker URL", remedy="--broker mqtt://broker.example:1883")


def open_client(access: BrokerAccess, client_id: str, *, reopens: bool = True) -> QuickClient:
    """A paho client with the settings that edgepack relies on; not connected yet.

    Args:
        access: The broker.
        client_id: The client's name there.
        reopens: Whether it opens a connection anew that broke.

    Raises:
        TransferError: A TLS file cannot be read.
    """
    client = QuickClient(
        CallbackAPIVersion.VERSION2,
        client_id,
        protocol=mqtt.MQTTv5,
        reconnect_on_failure=reopens,
    )
    client.on_socket_open = _without_delay
    client.reconnect_delay_set(min_delay=1, max_delay=15)
    if access.username:
        client.username_pw_set(access.username, access.password or None)
    if access.is_tls:
        try:
            client.tls_set(
                ca_certs=str(access.ca_file) if access.ca_file else None,
                certfile=str(access.cert_file) if access.cert_file else None,
                keyfile=str(access.key_file) if access.key_file else None,
                tls_version=ssl.PROTOCOL_TLS_CLIENT,
            )
        except (OSError, ValueError) as error:
            raise TransferError(
                f"cannot use the TLS files: {error}", found_in=f"{access.ca_file}"
            ) from error
    return client


def _without_delay(_client: mqtt.Client, _userdata: Any, sock: Any) -> None:
    # paho leaves Nagle's algorithm on: 47 ms a QoS 1 round trip instead of 0.8 on mosquitto.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
