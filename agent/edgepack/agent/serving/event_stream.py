"""Events of an answer of the model server that comes in parts."""

from typing import Protocol

from edgepack.errors import DeviceError

_EVENT_END = b"\n\n"
_MAX_EVENT_BYTES = 1024 * 1024


class StreamedConnection(Protocol):
    """Connection on which a stream arrives."""

    def receive(self) -> bytes:
        """Return further bytes; none at the end.

        Raises:
            OSError: The connection ended.
        """

    def close(self) -> None:
        """End the connection."""


class EventStream:
    """Events of an answer, in order; `close` the stream after use."""

    def __init__(self, connection: StreamedConnection, rest: bytes) -> None:
        self._connection, self._received = connection, rest

    def read(self) -> bytes:
        """Return the data of the next event.

        Raises:
            DeviceError: The server ended the stream, or an event is too long.
        """
        try:
            while (end := self._received.find(_EVENT_END)) < 0:
                more = self._connection.receive()
                if not more or len(self._received) > _MAX_EVENT_BYTES:
                    raise ConnectionResetError("the stream ended too early")
                self._received += more
        except OSError as error:
            raise DeviceError(f"the model server ended the text: {error}") from error
        event, self._received = self._received[:end], self._received[end + len(_EVENT_END) :]
        return event.removeprefix(b"data: ")

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
