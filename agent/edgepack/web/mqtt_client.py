"""A paho client that also goes through HTTP proxies and WebSockets."""

import socket
import ssl
from typing import Any, cast

import paho.mqtt.client as mqtt

from edgepack.web.broker_url import BrokerAddress
from edgepack.web.proxy import Proxy, open_tunnel

MISSING = "a ws:// or wss:// broker needs the package websockets: pip install 'edgepack[websocket]'"


class WebClient(mqtt.Client):
    """Connects to `address`, once that is set, by the way that leads there.

    paho makes its connections in `_create_socket_connection`, which is replaced here; no public
    call does it. Its own proxies need PySocks, which reads the first line of a proxy's answer and
    leaves the rest to whoever reads next; of its WebSocket see `edgepack.web.websocket`.
    """

    _address: BrokerAddress | None = None
    _proxy: Proxy | None = None
    _context: ssl.SSLContext | None = None

    def reach(
        self, address: BrokerAddress, proxy: Proxy | None, context: ssl.SSLContext | None
    ) -> None:
        """Sets where to and by which way; `connect` is still to be called.

        Args:
            address: The broker.
            proxy: None goes there directly.
            context: What TLS needs; None where the address has none.

        Raises:
            ModuleNotFoundError: The package for WebSockets is not installed.
        """
        if address.is_web:
            import_websocket()
        self._address, self._proxy, self._context = address, proxy, context
        if context is not None and not address.is_web:
            self.tls_set_context(context)

    def _create_socket_connection(self) -> Any:
        address, timeout_s = self._address, self.connect_timeout
        if address is None:
            return cast(Any, super())._create_socket_connection()
        if self._proxy is not None:
            opened = open_tunnel(self._proxy, address.host, address.port, timeout_s)
        else:
            opened = socket.create_connection((address.host, address.port), timeout_s)
        if not address.is_web:
            return opened
        try:
            opened.settimeout(timeout_s)
            if self._context is not None:
                opened = self._context.wrap_socket(opened, server_hostname=address.host)
        except BaseException:
            opened.close()
            raise
        from edgepack.web.websocket import WebSocket

        return WebSocket(opened, address, timeout_s)


def import_websocket() -> None:
    """Raises `ModuleNotFoundError` with what to install, where WebSockets cannot be used."""
    try:
        import edgepack.web.websocket  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING, name=error.name) from error
