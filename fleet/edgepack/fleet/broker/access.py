"""Access to the broker: addresses and credentials."""

import socket
import ssl
from pathlib import Path
from typing import Any

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from edgepack.agent.broker.quick_client import QuickClient
from edgepack.errors import TransferError
from edgepack.web.broker_url import BrokerAddress, read_broker_urls
from edgepack.web.mqtt_client import Way
from edgepack.web.proxy import find_proxy


class BrokerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses and credentials of the broker.

    Attributes:
        url: `mqtt://host:port` or `mqtts://host:port`; `ws://host/path` or `wss://host/path`.
            Further nodes of the broker follow after commas: `mqtts://one:8883,two:8883`.
        proxy: URL of an HTTP proxy that leads there; see `edgepack.web.proxy.find_proxy`.
        ca_file, cert_file, key_file: PEM files for TLS; None where none is used.
        username, password: For brokers with passwords.
    """

    url: str
    proxy: str = ""
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    username: str = ""
    password: str = ""

    @property
    def is_tls(self) -> bool:
        """True if the broker is reached over TLS."""
        return self.url.startswith(("mqtts://", "wss://"))

    def nodes(self) -> tuple[BrokerAddress, ...]:
        """Return the addresses of the broker's nodes.

        Raises:
            TransferError: The URL is not a broker URL.
        """
        try:
            return read_broker_urls(self.url)
        except ValueError as error:
            raise TransferError(
                f"{self.url!r} is not a broker URL",
                remedy="--broker mqtt://broker.example:1883, or several nodes of it: "
                "--broker mqtts://one.example:8883,two.example:8883",
            ) from error


def open_client(
    access: BrokerAccess, client_id: str, *, reopens: bool = True, first: int = 0
) -> QuickClient:
    """Return a paho client with the settings that edgepack relies on; not connected yet.

    Args:
        access: The broker.
        client_id: The client's name there.
        reopens: Whether the client reconnects after a broken connection.
        first: Index of the node to begin with; a greater index wraps around.

    Raises:
        TransferError: The URL is none of a broker, or a TLS file cannot be read.
        ModuleNotFoundError: The URL is a WebSocket URL and the package for WebSockets is not
            installed.
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
    try:
        ways = [
            Way(address=node, proxy=find_proxy(node.scheme, node.host, access.proxy))
            for node in access.nodes()
        ]
    except ValueError as error:
        raise TransferError(
            str(error), remedy="--broker-proxy http://proxy.example:3128"
        ) from error
    client.reach(ways, _tls_context(access) if access.is_tls else None, first=first)
    return client


def _tls_context(access: BrokerAccess) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(access.ca_file) if access.ca_file else None)
        if access.cert_file is not None:
            context.load_cert_chain(access.cert_file, access.key_file)
    except (OSError, ValueError) as error:
        raise TransferError(
            f"cannot use the TLS files: {error}", found_in=f"{access.ca_file}"
        ) from error
    return context


def _without_delay(_client: mqtt.Client, _userdata: Any, sock: Any) -> None:
    # paho leaves Nagle's algorithm on: 47 ms a QoS 1 round trip instead of 0.8 on mosquitto.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
