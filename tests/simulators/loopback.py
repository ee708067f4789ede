"""A server on loopback that serves each connection in a thread."""

import contextlib
import socket
import threading


class LoopbackServer:
    """Listens as long as the process lives, or until `close`.

    Attributes:
        port, url: Where it listens.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._listener = socket.create_server((host, 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                opened, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(opened,), daemon=True).start()

    def _serve(self, opened: socket.socket) -> None:
        raise NotImplementedError
