"""Client with connections and unfinished requests; reopens each closed connection.

    python -m tests.simulators.half_sent PORT COUNT head|body

Each printed line is the number of opened connections so far.
"""

import contextlib
import resource
import selectors
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.simulators.waiting import PATIENCE_S

CONTENTS = {
    "head": b"GET /v1/info HTTP/1.1\r\nHost: fleet\r\nX-Never-",
    "body": b"POST /login HTTP/1.1\r\nHost: fleet\r\nContent-Length: 60000\r\n\r\ntoken=",
}


class HalfSent:
    """Half-sent requests to a port of the loopback interface, from a process of their own.

    Attributes:
        opened: Connections that were opened so far.
    """

    def __init__(self, port: int, count: int, kind: str) -> None:
        self.opened = 0
        words = ["tests.simulators.half_sent", str(port), str(count), kind]
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.opened = int(line)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)


def _hold(port: int, count: int, content: bytes) -> None:
    opened, reported_at = 0, time.monotonic()
    with selectors.DefaultSelector() as selector:
        while True:
            while len(selector.get_map()) < count:
                held = socket.socket()
                held.settimeout(1)
                try:
                    held.connect(("127.0.0.1", port))
                    held.sendall(content)
                except OSError:
                    held.close()
                    break
                held.setblocking(False)
                selector.register(held, selectors.EVENT_READ)
                opened += 1
            for key, _ in selector.select(0.05):
                ended = key.fileobj
                assert isinstance(ended, socket.socket)
                if _has_ended(ended):
                    selector.unregister(ended)
                    ended.close()
            if time.monotonic() - reported_at > 0.1:
                reported_at = time.monotonic()
                print(opened, flush=True)


def _has_ended(held: socket.socket) -> bool:
    with contextlib.suppress(BlockingIOError):
        try:
            return not held.recv(4096)
        except OSError:
            return True
    return False


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _hold(int(sys.argv[1]), int(sys.argv[2]), CONTENTS[sys.argv[3]])
