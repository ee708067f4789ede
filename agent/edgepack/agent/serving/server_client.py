"""Client of the model server's unix socket: HTTP/1.1 on connections that are kept.

A connection that ended, because the server was started again, is made again within a bounded time:
an inference may be repeated, since it changes nothing.
"""

import contextlib
import os
import socket
import struct
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.agent.inference_protocol.messages import JSON_LENGTH
from edgepack.agent.inference_protocol.text_messages import TextError
from edgepack.agent.serving.event_stream import EventStream
from edgepack.agent.state.model_server import (
    MEMORY_FILE,
    SOCKET_FILE,
    connect_to_server,
    socket_folder,
)
from edgepack.decoding import decode_json
from edgepack.errors import DeviceError

PATIENCE_S = 30.0
"""How long a call waits for a server that is being started, or whose queue is full."""
ANSWER_S = 300.0
"""How long a single step of a call may take."""
_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_MAX_IDLE = 16
"""Connections that are kept."""
_BUFFER_BYTES = 64 * 1024
_MAX_ANSWER_BYTES = 2**31
_END = b"\r\n\r\n"
_TIMEOUT = struct.pack("ll", int(ANSWER_S), 0)
_JSON_LENGTH = JSON_LENGTH.lower().encode()

Bytes = npt.NDArray[np.uint8]


class _AnyError(msgspec.Struct, frozen=True):
    """Error of either protocol."""

    error: str | TextError


class Reply(NamedTuple):
    """Answer of the server.

    Attributes:
        status: Status of HTTP.
        body: Content, uint8 (n,), owned by the caller.
        json_length: Length of the JSON in front of binary tensors.
        retry_s: Seconds after which the request may succeed; 0 if unknown.
    """

    status: int
    body: Bytes
    json_length: int
    retry_s: int

    @property
    def json(self) -> memoryview:
        """The JSON."""
        return self.body[: self.json_length].data


class _Connection:
    """Connection with a buffer for heads and short answers."""

    def __init__(self, state_dir: Path, name: str = SOCKET_FILE) -> None:
        self._socket = connect_to_server(state_dir, ANSWER_S, name)
        self._socket.setblocking(True)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # No further call of the system.
            self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEOUT)
        self._buffer = bytearray(_BUFFER_BYTES)

    def close(self) -> None:
        self._socket.close()

    def pass_file(self, file: int) -> Reply:
        """Pass a descriptor, and return the answer.

        Raises:
            OSError: The connection ended, or the answer is malformed.
        """
        socket.send_fds(self._socket, [b"\0"], [file])
        return self.exchange(())[0]

    def exchange(self, parts: Sequence[bytes | memoryview]) -> tuple[Reply, bool]:
        """Send a request, and return the answer and whether the connection is kept.

        Raises:
            OSError: The connection ended, or the answer is malformed.
        """
        self._send(parts)
        return self._read_answer(*self._read_head())

    def begin(self, parts: Sequence[bytes | memoryview]) -> tuple[Reply, bytes | None]:
        """Send a request that a stream answers.

        Returns:
            The answer, and the bytes of the stream that are here; None if the answer is whole.

        Raises:
            OSError: The connection ended, or the answer is malformed.
        """
        self._send(parts)
        status, fields, rest = self._read_head()
        if b"content-length" in fields:
            return self._read_answer(status, fields, rest)[0], None
        return Reply(status, np.empty(0, np.uint8), 0, 0), bytes(rest)

    def receive(self) -> bytes:
        """Return further bytes of a stream; none at its end.

        Raises:
            OSError: The connection ended.
        """
        return self._socket.recv(_BUFFER_BYTES)

    def _read_head(self) -> tuple[int, dict[bytes, bytes], memoryview]:
        """Return status and fields of an answer, and the bytes behind the head."""
        buffer, number, end = self._buffer, 0, -1
        while end < 0:
            received = self._socket.recv_into(memoryview(buffer)[number:])
            if not received:
                raise ConnectionResetError("the server ended the connection")
            number += received
            end = buffer.find(_END, 0, number)
        status, fields = _read_head(bytes(buffer[:end]))
        return status, fields, memoryview(buffer)[end + len(_END) : number]

    def _read_answer(
        self, status: int, fields: dict[bytes, bytes], rest: memoryview
    ) -> tuple[Reply, bool]:
        """Return an answer of known length, and whether the connection is kept."""
        length = _number(fields, b"content-length")
        if length > _MAX_ANSWER_BYTES:
            raise OSError("the answer of the server is too long")
        body = np.empty(length, np.uint8)
        have = min(len(rest), length)
        body[:have] = np.frombuffer(rest, np.uint8, have)
        view = body.data
        while have < length:
            received = self._socket.recv_into(view[have:])
            if not received:
                raise ConnectionResetError("the server ended the connection")
            have += received
        json_length = _number(fields, _JSON_LENGTH) if _JSON_LENGTH in fields else length
        if json_length > length:
            raise OSError("the answer of the server is malformed")
        retry_s = _number(fields, b"retry-after")
        is_kept = fields.get(b"connection") != b"close"
        return Reply(status, body, json_length, retry_s), is_kept

    def _send(self, parts: Sequence[bytes | memoryview]) -> None:
        left = [memoryview(part).cast("B") for part in parts if len(part)]
        while left:
            sent = self._socket.sendmsg(left)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]


class ServerClient:
    """Client of the model server, safe to use from several threads and harmless under fork.

    Args:
        state_dir: The agent's state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._idle: list[_Connection] = []
        _clients.add(self)

    def ask(self, parts: Sequence[bytes | memoryview]) -> Reply:
        """Send a request, and return the answer.

        Args:
            parts: The request, from its first line to the end of its body.

        Returns:
            An answer with a status below 400.

        Raises:
            ValueError: The request does not fit the model.
            DeviceError: The server does not answer, or cannot carry out the request.
        """
        return self._persist(lambda: self._ask_once(parts))

    def share(self, file: int) -> tuple[Reply, Callable[[], object]]:
        """Pass the descriptor of sealed memory.

        Returns:
            The answer, and a function that ends the use of the memory.

        Raises:
            ValueError: The server does not take the memory.
            DeviceError: The server does not answer, or has no room.
        """
        made: list[_Connection] = []

        def share_once() -> Reply:
            while made:
                made.pop().close()
            made.append(_Connection(self._state_dir, MEMORY_FILE))
            return made[0].pass_file(file)

        try:
            return self._persist(share_once), made[0].close
        except BaseException:
            while made:
                made.pop().close()
            raise

    def stream(self, parts: Sequence[bytes | memoryview]) -> EventStream:
        """Send a request that a stream of events answers, on a connection of its own.

        Returns:
            The events.

        Raises:
            ValueError: The request does not fit the model.
            DeviceError: The server does not answer, or cannot carry out the request.
        """
        found: list[EventStream] = []

        def begin() -> Reply:
            connection = _Connection(self._state_dir)
            try:
                reply, rest = connection.begin(parts)
            except BlockingIOError as fault:
                connection.close()
                raise TimeoutError(f"no answer within {ANSWER_S:g} s") from fault
            except BaseException:
                connection.close()
                raise
            if rest is None:
                connection.close()
            else:
                found.append(EventStream(connection, rest))
            return reply

        self._persist(begin)
        if not found:
            raise DeviceError("the model server answers without a stream")
        return found[0]

    def _persist(self, ask: Callable[[], Reply]) -> Reply:
        """Return the answer to a request, which is repeated for a while if the server is away."""
        until, pause_s = 0.0, _PAUSE_S
        while True:
            try:
                reply = ask()
                if reply.status < 400:
                    return reply
                error = _error_of(reply)
                if reply.status not in (429, 503) or reply.retry_s != 1:
                    raise error
            except TimeoutError as fault:
                raise self._not_here(fault) from fault
            except OSError as fault:
                error = self._not_here(fault)
                if not os.path.isdir(self._state_dir):  # noqa: PTH112 - also False without rights
                    raise error from fault
            now = time.monotonic()
            until = until or now + PATIENCE_S
            if now + pause_s > until:
                raise error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def close(self) -> None:
        """Close all connections that no call uses."""
        while self._idle:
            with contextlib.suppress(IndexError):  # Another thread took the last one.
                self._idle.pop().close()

    def _ask_once(self, parts: Sequence[bytes | memoryview]) -> Reply:
        """Send a request on a kept connection, else on a new one.

        Raises:
            TimeoutError: The answer takes too long.
            OSError: No connection can be made, or it ended.
        """
        while True:
            try:
                connection, is_new = self._idle.pop(), False
            except IndexError:
                connection, is_new = _Connection(self._state_dir), True
            try:
                reply, is_kept = connection.exchange(parts)
            except BlockingIOError as fault:
                connection.close()
                raise TimeoutError(f"no answer within {ANSWER_S:g} s") from fault
            except OSError:
                connection.close()
                if is_new:
                    raise
                continue  # The server ended an idle connection, or was started again.
            except BaseException:  # An interrupted call leaves its answer in the connection.
                connection.close()
                raise
            if is_kept and len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
            else:
                connection.close()
            return reply

    def _not_here(self, fault: OSError) -> DeviceError:
        if not self._state_dir.is_dir():
            return DeviceError(
                "there is no such state folder",
                found_in=str(self._state_dir),
                remedy="name the state_dir of the agent's settings, or set EDGEPACK_STATE_DIR",
            )
        return DeviceError(
            f"the model server does not answer: {fault.strerror or fault}",
            found_in=str(socket_folder(self._state_dir) / SOCKET_FILE),
            remedy="enabled = true in [server] of the agent's settings, or edgepack-agent serve",
        )


_clients: "weakref.WeakSet[ServerClient]" = weakref.WeakSet()


def _read_head(head: bytes) -> tuple[int, dict[bytes, bytes]]:
    """Return status and fields of an answer.

    Raises:
        OSError: The head is malformed.
    """
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    if len(words) < 2 or words[0] != b"HTTP/1.1" or not words[1].isdigit():
        raise OSError("the answer of the server is malformed")
    fields = {}
    for line in lines:
        name, _, value = line.partition(b":")
        fields[name.lower()] = value.strip()
    return int(words[1]), fields


def _number(fields: dict[bytes, bytes], name: bytes) -> int:
    value = fields.get(name, b"0")
    if not value.isdigit() or len(value) > 12:
        raise OSError("the answer of the server is malformed")
    return int(value)


def _error_of(reply: Reply) -> ValueError | DeviceError:
    """Return the error of an answer, as a model in the process would raise it."""
    try:
        error = decode_json(bytes(reply.body), _AnyError).error
        text = error if isinstance(error, str) else error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = f"the model server answered with status {reply.status}"
    return ValueError(text) if reply.status in (400, 413) else DeviceError(text)


def _note_fork() -> None:
    """Close connections of the parent in a forked child: the parent goes on using them."""
    for client in tuple(_clients):
        client.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
