"""HTTP/1.1 protocol of uvicorn with data for `Connections`."""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from edgepack.fleet.server.connections import PARAMETER, Connection, Connections, Phase


class AcceptedPeer:
    """The server's end of a connection: first a TLS handshake, then HTTP.

    Attributes:
        task: Task that sets the connection up.
        protocol: Protocol of the connection; None before setup.
    """

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.protocol: BoundedProtocol | None = None

    @property
    def phase(self) -> Phase:
        """Phase of the connection, as a wait for an event."""
        return self.protocol.phase if self.protocol is not None else "handshake"

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client did not take yet."""
        return self.protocol.transport.get_write_buffer_size() if self.protocol is not None else 0

    def drop(self) -> None:
        """Close at once."""
        if self.protocol is not None:
            self.protocol.transport.abort()
        elif self.task is not None:
            self.task.cancel()


class BoundedProtocol(H11Protocol):
    """Serves a connection and keeps its entry among the connections."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        connections: Connections,
        connection: Connection,
        peer: AcceptedPeer,
    ) -> None:
        super().__init__(config, server_state, {**app_state, PARAMETER: connection})
        self._connections, self._connection, self._peer = connections, connection, peer

    @property
    def phase(self) -> Phase:
        """Phase of the connection, as a wait for an event."""
        if self.cycle is None:
            return "head"
        if self.cycle.response_complete:
            # A body that was refused, and that the client sends all the same, counts as one.
            return "body" if self.cycle.more_body else "head"
        if self.flow.write_paused:
            return "send"
        return "body" if self.cycle.more_body and not self.flow.read_paused else "work"

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer.protocol = self

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self._connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._connection.received += len(data)
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._connection.finished += 1
        super().on_response_complete()
