"""A relay between an agent's WebSocket and a real broker, which misbehaves on the WebSocket."""

import contextlib
import select
import socket
from typing import Literal

from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from tests.simulators.loopback import LoopbackServer

Way = Literal["honest", "close with data", "hang up", "ping", "violate"]
PING = b"\x89\x00"
RESERVED = b"\x83\x00"
"""A frame with an opcode that no protocol defines."""
MOST_PINGS_BYTES = 64 * 1024 * 1024
"""A flood of pings ends after so many bytes; what reads them all keeps an answer to each."""


class HostileWebSocket(LoopbackServer):
    """Relays each connection to the broker.

    Args:
        broker_port: Of a broker on this machine, without TLS.
        ways: Behaviour of each connection in turn; later connections are honest. `close with data`
            sends the broker's second answer and a close frame in one segment; `ping` sends pings
            after the first answer, and reads nothing any more; `violate` sends a reserved frame;
            `hang up` ends the connection without a close frame.

    Attributes:
        ended_pings: Bytes of pings at which the agent ended each flood.
    """

    def __init__(self, broker_port: int, ways: tuple[Way, ...]) -> None:
        self._broker_port = broker_port
        self._ways = list(ways)
        self.ended_pings: list[int] = []
        self.connections = 0
        super().__init__()
        self.url = f"ws://127.0.0.1:{self.port}/mqtt"

    def _serve(self, opened: socket.socket) -> None:
        self.connections += 1
        way: Way = self._ways.pop(0) if self._ways else "honest"
        protocol = ServerProtocol(subprotocols=["mqtt"])  # type: ignore[list-item]
        with contextlib.suppress(OSError), opened:
            while protocol.state is State.CONNECTING:
                protocol.receive_data(opened.recv(4096))
                for request in protocol.events_received():
                    protocol.send_response(protocol.accept(request))  # type: ignore[arg-type]
            opened.sendall(b"".join(protocol.data_to_send()))
            with socket.create_connection(("127.0.0.1", self._broker_port)) as broker:
                self._relay(opened, protocol, broker, way)

    def _relay(
        self, opened: socket.socket, protocol: ServerProtocol, broker: socket.socket, way: Way
    ) -> None:
        answers = 0
        while protocol.state is State.OPEN:
            readable, _, _ = select.select([opened, broker], [], [])
            if opened in readable:
                protocol.receive_data(opened.recv(65536))
                for event in protocol.events_received():
                    if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT):
                        broker.sendall(event.data)
            if broker in readable:
                piece = broker.recv(65536)
                if not piece:
                    return
                answers += 1
                protocol.send_binary(piece)
                if way == "close with data" and answers == 2:
                    protocol.send_close(1000)
            opened.sendall(b"".join(protocol.data_to_send()))
            if way == "hang up" and answers == 2:
                opened.shutdown(socket.SHUT_WR)
                break
            if way == "violate" and answers == 2:
                opened.sendall(RESERVED)
                break
            if way == "ping" and answers:
                self._flood(opened)
                return
        with contextlib.suppress(OSError):
            while opened.recv(65536):
                pass

    def _flood(self, opened: socket.socket) -> None:
        sent, piece = 0, PING * 4096
        with contextlib.suppress(OSError):
            while sent < MOST_PINGS_BYTES:
                sent += opened.send(piece)
        self.ended_pings.append(sent)
