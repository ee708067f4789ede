"""A paho client of brokers with several nodes, through HTTP proxies and WebSockets too."""

import ssl
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from typing import Any, cast

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import MQTTErrorCode

from edgepack.extras import install_command
from edgepack.web.broker_url import BrokerAddress
from edgepack.web.deadline import Deadline, answer_within
from edgepack.web.proxy import Proxy, open_tunnel


class ViolationError(ConnectionError):
    """The peer violates its protocol."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the broker, and the proxy that leads there."""

    address: BrokerAddress
    proxy: Proxy | None = None


class WebClient(mqtt.Client):
    """MQTT client that uses one of the given ways, and the next way at each reconnect.

    paho makes its connections in `_create_socket_connection`, which is replaced here; no public
    call allows a replacement. Its own proxies need PySocks, which reads the first line of a proxy's
    answer and leaves the rest to the next reader; for its WebSocket see `edgepack.web.websocket`.
    """

    _ways: tuple[Way, ...] = ()
    _turn: Iterator[Way]
    _way: Way | None = None
    _context: ssl.SSLContext | None = None

    def reach(self, ways: Sequence[Way], context: ssl.SSLContext | None, *, first: int = 0) -> None:
        """Set where to and by which ways; `connect_somewhere` is still to be called.

        Args:
            ways: At least 1, all with the same scheme.
            context: TLS context; None for addresses without TLS.
            first: Index of the first way, so that not all clients crowd on a single node.

        Raises:
            ModuleNotFoundError: The package for WebSockets is not installed.
        """
        is_web = ways[0].address.is_web
        if is_web:
            import_websocket()
        self._ways, self._context = tuple(ways), context
        self._turn = islice(cycle(self._ways), first % len(ways), None)
        if context is not None and not is_web:
            self.tls_set_context(context)

    @property
    def way(self) -> Way:
        """The last used way, or the first."""
        return self._way or self._ways[0]

    def connect_somewhere(self, **settings: Any) -> None:
        """Connect to the first available node; `settings` are the arguments of `connect`.

        Raises:
            OSError: No node is available; the error is the last node's.
        """
        for left in reversed(range(len(self._ways))):
            try:
                self.connect(self.way.address.host, self.way.address.port, **settings)
            except OSError:
                if not left:
                    raise
            else:
                return

    def connect_later(self, **settings: Any) -> None:
        """Connect in paho's thread; `settings` are the arguments of `connect_async`."""
        self.connect_async(self.way.address.host, self.way.address.port, **settings)

    def reconnect(self) -> MQTTErrorCode:
        """Open the connection again, by the next way.

        TLS checks the certificate against a host that paho fixes after the first connection, so
        this method sets paho's private field.
        """
        if self._ways:
            self._way = way = next(self._turn)
            self._host, self._port = way.address.host, way.address.port
        return super().reconnect()

    def _create_socket_connection(self) -> Any:
        way, timeout_s = self._way, self.connect_timeout
        if way is None:
            return cast(Any, super())._create_socket_connection()
        address = way.address
        if way.proxy is not None:
            opened = open_tunnel(way.proxy, address.host, address.port, timeout_s)
        else:
            deadline = Deadline(answer_within(timeout_s))
            opened = deadline.connect(address.host, address.port).leave_deadline()
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
    """Raise `ModuleNotFoundError` with the package to install, if WebSockets are unavailable."""
    try:
        import edgepack.web.websocket  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a ws:// or wss:// broker needs the package websockets: "
            + install_command("websocket"),
            name=error.name,
        ) from error
