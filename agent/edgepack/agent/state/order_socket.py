"""The unix socket over which commands of this device give orders to a running agent.

`agent.sock` in the state folder, for the agent's user and root alone. Each packet is a letter of
`KINDS` and its content. The command sends the order, then the chunks that the agent needs; the
agent sends needs, transitions, and the end.
"""

import os
import socket
from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import put_aside
from edgepack.agent.state.unix_socket import bind_path, peer_user, short_path
from edgepack.bundle.metadata import MAX_CHUNK_BYTES
from edgepack.decoding import decode_json
from edgepack.errors import TransferError
from edgepack.wire.orders import ModelOrder
from edgepack.wire.transfers import Need

SOCKET_FILE = "agent.sock"
MAX_PACKET_BYTES = 2 * MAX_CHUNK_BYTES
"""A chunk with its place, or a need, which is below a broker's limit."""
_BUFFER_BYTES = 4 * MAX_CHUNK_BYTES
_PLACE_BYTES = 36


class LocalOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Order of a command.

    Attributes:
        name: The model.
        order: What to do with the model.
    """

    name: str
    order: ModelOrder


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Transition of the model's update."""

    state: str
    because: str


class OrderEnd(msgspec.Struct, frozen=True, kw_only=True):
    """End of an order; `problem` and `remedy` are "" if the order was carried out."""

    problem: str = ""
    remedy: str = ""


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Chunk of a file: `index` of the file with that digest."""

    sha256: str
    index: int
    content: bytes


Packet = LocalOrder | Need | Progress | OrderEnd | Chunk
KINDS: dict[bytes, type[LocalOrder | Need | Progress | OrderEnd]] = {
    b"o": LocalOrder,
    b"n": Need,
    b"p": Progress,
    b"e": OrderEnd,
}
_LETTERS = {struct: letter for letter, struct in KINDS.items()}
_CHUNK = b"c"


def encode_packet(packet: Packet) -> bytes:
    """Return the bytes of a packet."""
    if isinstance(packet, Chunk):
        place = bytes.fromhex(packet.sha256) + packet.index.to_bytes(4, "big")
        return b"".join((_CHUNK, place, packet.content))
    return _LETTERS[type(packet)] + msgspec.json.encode(packet)


def decode_packet(content: bytes) -> Packet:
    """Return a received packet.

    Raises:
        TransferError: The packet is malformed.
    """
    letter, body = content[:1], content[1:]
    try:
        if letter == _CHUNK and len(body) > _PLACE_BYTES:
            index = int.from_bytes(body[_PLACE_BYTES - 4 : _PLACE_BYTES], "big")
            sha256 = body[: _PLACE_BYTES - 4].hex()
            return Chunk(sha256=sha256, index=index, content=body[_PLACE_BYTES:])
        return decode_json(body, KINDS[letter])
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TransferError(f"malformed packet of a local order: {error}") from error


def receive(peer: socket.socket) -> Packet | None:
    """Return the next packet; None at the end of the connection.

    Raises:
        OSError: Nothing was received in time.
        TransferError: The packet is malformed.
    """
    content = peer.recv(MAX_PACKET_BYTES)
    return decode_packet(content) if content else None


def listen_for_orders(state_dir: Path) -> socket.socket:
    """Return the listening socket, which only the agent's user and root may use.

    Raises:
        OSError: The socket cannot be made.
    """
    path = state_dir / SOCKET_FILE
    if os.path.lexists(path) and not path.is_socket():
        put_aside(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    bind_path(server, path, 0o600)
    try:
        server.listen()
    except OSError:
        server.close()
        raise
    return server


def connect_to_agent(state_dir: Path, timeout_s: float) -> socket.socket:
    """Return a connection to the running agent.

    Args:
        state_dir: The agent's state folder.
        timeout_s: Seconds for the connection and each later step.

    Raises:
        OSError: No agent listens, or another user does.
    """
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        peer.settimeout(timeout_s)
        set_buffer(peer)
        with short_path(state_dir / SOCKET_FILE) as place:
            peer.connect(place)
        if peer_user(peer) not in (0, state_dir.stat().st_uid):
            raise PermissionError("the socket belongs to another user than the state folder")
    except OSError:
        peer.close()
        raise
    return peer


def set_buffer(peer: socket.socket) -> None:
    """Let some packets wait in the kernel until the peer reads."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
