"""Messages to the service manager, systemd: ready, state, reload, stop, and the watchdog's sign.

The protocol is sd_notify(3): a datagram of lines to the socket that `NOTIFY_SOCKET` names. Without
that variable nothing is sent.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, MutableMapping

SIGNS_PER_LIMIT = 4
"""Signs of life within the watchdog's limit: three may be late, and the agent is not restarted."""
SHORTEST_S = 1.0
"""Between two signs: a busy loop turns hundreds of times a second."""
MAX_STATUS = 200


class ServiceManager:
    """The service manager that started this process.

    Args:
        address: Path of the socket; a leading `@` stands for an abstract name; "" sends nothing.
        watchdog_s: Limit between two signs of life, seconds; 0 needs none.
        monotonic: Clock, seconds.
    """

    def __init__(
        self,
        address: str = "",
        watchdog_s: float = 0.0,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._pause_s = max(SHORTEST_S, watchdog_s / SIGNS_PER_LIMIT) if watchdog_s else 0.0
        self._monotonic, self._due_at = monotonic, 0.0
        self._status = ""

    def ready(self) -> None:
        """Report that the agent runs, at the start or after a reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Report that the settings are being read again, until `ready`."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(_CLOCK) // 1000}")

    def stopping(self) -> None:
        """Report that the agent ends."""
        self._send("STOPPING=1", "STATUS=stopping")

    def waiting(self, because: str, for_s: float) -> None:
        """Report a start that takes longer, and its reason.

        Args:
            because: Reason, for `systemctl status`.
            for_s: Seconds from now in which the manager must not give the start up.
        """
        self._send(f"EXTEND_TIMEOUT_USEC={round(for_s * 1e6)}", f"STATUS={_one_line(because)}")

    def report(self, status: str) -> None:
        """Send the state of the agent for `systemctl status`, if the state has changed."""
        if status != self._status:
            self._status = status
            self._send(f"STATUS={_one_line(status)}")

    def sign(self) -> None:
        """Send the sign of life if due. Only the loop that does the work may call this method."""
        if self._pause_s and (now := self._monotonic()) >= self._due_at:
            self._due_at = now + self._pause_s
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # A manager that does not read must not stop the loop.
        with (
            contextlib.suppress(OSError),
            socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as sender,
        ):
            sender.sendto("\n".join(lines).encode(), self._address)


_CLOCK = time.CLOCK_MONOTONIC


def find_service_manager(environment: MutableMapping[str, str] = os.environ) -> ServiceManager:
    """Return the service manager of this process, and take its variables out of the environment.

    A variable of another process, or one that is malformed, counts as missing.

    Args:
        environment: Variables of this process.
    """
    address = environment.pop("NOTIFY_SOCKET", "")
    limit, process = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    is_ours = process in ("", str(os.getpid()))
    is_number = limit.isascii() and limit.isdecimal() and len(limit) < 20
    return ServiceManager(
        address if address.startswith(("/", "@")) else "",
        int(limit) / 1e6 if is_ours and is_number else 0.0,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_STATUS]
