"""A peer on loopback that answers correctly at first, and then misbehaves in six ways."""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Literal

from tests.simulators.loopback import LoopbackServer

Way = Literal["drip", "hang", "hang halfway", "flood", "close", "late"]
WAYS: tuple[Way, ...] = ("drip", "hang", "hang halfway", "flood")
DRIP_S = 0.2


class HostilePeer(LoopbackServer):
    """Listens until `close`, which ends its connections.

    Args:
        answer: Gives the whole honest answer, from the bytes that came first.
        way: `drip` sends a byte now and then, `hang` nothing, `hang halfway` the first half,
            `flood` the first half and then more without an end, `close` as many bytes as `cut`,
            `late` all after a moment, and then the end of the connection.
        filler: Repeated bytes of a flood.

    Attributes:
        cut: Bytes that are sent before a `close`.
    """

    def __init__(
        self, answer: Callable[[bytes], bytes], way: Way, filler: bytes = b"x" * 4096
    ) -> None:
        self._answer, self._way, self._filler = answer, way, filler
        self.cut = 0
        self.asked = threading.Event()
        self._closing = threading.Event()
        super().__init__()

    def close(self) -> None:
        self._closing.set()
        super().close()

    def _serve(self, opened: socket.socket) -> None:
        with opened, contextlib.suppress(OSError):
            opened.settimeout(60)
            first = opened.recv(65536)
            self.asked.set()
            answer = self._answer(first)
            if self._way == "close":
                opened.sendall(answer[: self.cut])
                opened.shutdown(socket.SHUT_WR)
                while opened.recv(65536):
                    pass
            elif self._way == "drip":
                for at in range(len(answer)):
                    opened.sendall(answer[at : at + 1])
                    if self._closing.wait(DRIP_S):
                        return
            elif self._way == "late":
                self._closing.wait(DRIP_S)
                opened.sendall(answer)
                return
            elif self._way != "hang":
                opened.sendall(answer[: len(answer) // 2])
                while self._way == "flood" and not self._closing.is_set():
                    opened.sendall(self._filler)
            self._closing.wait(60)
