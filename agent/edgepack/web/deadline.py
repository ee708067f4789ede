"""Deadlines of waits on external parties: a limit for all connections, reads and writes together.

A time limit per read does not end a peer that sends a byte now and then. A `Deadline` adds up the
time spent in waits on a party, and the time of reading the party's answers, which a peer that
floods prolongs without a wait. The party earns time back with transferred bytes and complete
answers, so a long transfer may last, and a slow transfer ends.
"""

import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from edgepack.web.networks import Network, network_of

MAX_ADDRESSES = 8
"""Addresses of one name that are tried."""
_SEND_BYTES = 64 * 1024


class WaitLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the waits on a party.

    Attributes:
        connect_s: Longest wait for a name and for a connection.
        idle_s: Longest wait for the next byte.
        total_s: All waits together, without the time that transferred bytes earn.
        request_s: Time that each complete answer earns.
        least_bytes_per_s: Lowest rate of a transfer; 0 lets bytes earn no time.
    """

    connect_s: float = 10.0
    idle_s: float = 30.0
    total_s: float = 60.0
    request_s: float = 1.0
    least_bytes_per_s: int = 2048
    """Below the 26 kbit/s of an NB-IoT device of the first category (3GPP release 13)."""


DEFAULT_LIMITS = WaitLimits()


def answer_within(total_s: float) -> WaitLimits:
    """Return the limits of a short answer: complete within a time, in any form."""
    return WaitLimits(
        connect_s=total_s, idle_s=total_s, total_s=total_s, request_s=0.0, least_bytes_per_s=0
    )


class FinalError(OSError):
    """A failure that another attempt does not change."""


class DeadlineError(FinalError, TimeoutError):
    """The party took too long in all."""


class NetworkError(FinalError):
    """The address is in a network that must not be reached this way."""


class Deadline:
    """Remaining time for waits on a party; used by a single thread.

    Args:
        limits: See `WaitLimits`.
        clock: Monotonic, seconds.
    """

    def __init__(
        self,
        limits: WaitLimits = DEFAULT_LIMITS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._left_s = limits, limits.total_s
        self._clock = clock
        self._counted_at: float | None = None

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count all time of a block, also between the waits in the block."""
        is_outer = self._counted_at is None
        self._count()
        try:
            yield
        finally:
            self._count()
            if is_outer:
                self._counted_at = None

    def _count(self) -> None:
        now = self._clock()
        if self._counted_at is not None:
            self._left_s -= now - self._counted_at
        self._counted_at = now

    @contextmanager
    def waiting(self, opened: socket.socket | None = None, most_s: float = 0.0) -> Iterator[float]:
        """Count the time of a blocking operation.

        Args:
            opened: Gets the operation's timeout.
            most_s: Longest wait; 0 takes the limit of a read.

        Yields:
            The longest time that the operation may take, seconds.

        Raises:
            DeadlineError: No time is left.
            TimeoutError: The operation itself took too long.
        """
        with self.counting():
            timeout_s = min(most_s or self._limits.idle_s, self._left_s)
            is_last = timeout_s >= self._left_s
            if timeout_s <= 0:
                raise self._over()
            if opened is not None:
                opened.settimeout(timeout_s)
            try:
                yield timeout_s
            except TimeoutError as error:
                self._count()
                if is_last or self._left_s <= 0:
                    raise self._over() from error
                raise

    def earn(self, size_bytes: int = 0, answers: int = 0) -> None:
        """Add the time that bytes and answers earn, up to the limit that there was at first."""
        earned_s = answers * self._limits.request_s
        if self._limits.least_bytes_per_s:
            earned_s += size_bytes / self._limits.least_bytes_per_s
        self._left_s = min(self._limits.total_s, self._left_s + earned_s)

    def connect(
        self, host: str, port: int, nearest: Network = Network.THIS_MACHINE
    ) -> "DeadlineSocket":
        """Connect to the first address of a host that answers.

        Args:
            host: Name or address.
            port: Of TCP.
            nearest: An address in a nearer network is rejected, without trying other addresses.

        Raises:
            OSError: No address answers.
        """
        addresses = self.find_addresses(host, port)
        check_addresses(host, (str(address[0]) for _, address in addresses), nearest)
        failure: OSError = OSError(f"{host} has no address")
        for family, address in addresses[:MAX_ADDRESSES]:
            opened = DeadlineSocket(family, socket.SOCK_STREAM)
            opened.deadline = self
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self.waiting(opened, self._limits.connect_s):
                    opened.connect(address)
            except DeadlineError:
                opened.close()
                raise
            except OSError as error:
                opened.close()
                failure = error
            except BaseException:
                opened.close()
                raise
            else:
                return opened
        raise failure

    def find_addresses(self, host: str, port: int) -> list[tuple[int, Any]]:
        """Return family and address of each of a host's addresses.

        Raises:
            OSError: The name has none, or the resolver does not answer in time.
        """
        with self.waiting(most_s=self._limits.connect_s) as timeout_s:
            found = _resolve(host, port, timeout_s)
        return list(dict.fromkeys((int(family), address) for family, *_, address in found))

    def wrap_tls(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Make the sockets of a context keep this deadline, and return the context."""
        context.sslsocket_class = type("BoundTlsSocket", (DeadlineTlsSocket,), {"deadline": self})
        return context

    def _over(self) -> DeadlineError:
        self._left_s = min(self._left_s, 0.0)
        return DeadlineError(f"it takes too long: more than {self._limits.total_s:g} s of waiting")


class DeadlineSocket(socket.socket):
    """A TCP connection that counts every wait. `makefile` reads through `recv_into`."""

    deadline: Deadline

    def recv(self, *arguments: Any) -> bytes:
        """Receive; see `Deadline.waiting`."""
        with self.deadline.waiting(self):
            return super().recv(*arguments)

    def recv_into(self, *arguments: Any) -> int:
        """Receive into a buffer; see `Deadline.waiting`."""
        with self.deadline.waiting(self):
            return super().recv_into(*arguments)

    def send(self, *arguments: Any) -> int:
        """Send some bytes; sent bytes earn time."""
        with self.deadline.waiting(self):
            sent = super().send(*arguments)
        self.deadline.earn(sent)
        return sent

    def sendall(self, data: Any, *arguments: Any) -> None:
        """Send all, piece by piece, so that no single wait is for the whole content."""
        with memoryview(data) as view, view.cast("B") as rest:
            at = 0
            while at < len(rest):
                at += self.send(rest[at : at + _SEND_BYTES], *arguments)

    def leave_deadline(self) -> socket.socket:
        """Return the connection as a blocking socket without a deadline; close this socket."""
        plain = socket.socket(fileno=self.detach())
        plain.settimeout(None)
        return plain


class DeadlineTlsSocket(ssl.SSLSocket):
    """A TLS connection that counts every wait: `recv` and `recv_into` end in `read`."""

    deadline: Deadline

    def do_handshake(self, *arguments: Any) -> None:
        """Run the TLS handshake; see `Deadline.waiting`."""
        with self.deadline.waiting(self):
            super().do_handshake(*arguments)

    def read(self, *arguments: Any) -> Any:
        """Receive; see `Deadline.waiting`."""
        with self.deadline.waiting(self):
            return super().read(*arguments)

    def send(self, *arguments: Any) -> int:
        """Send some bytes; sent bytes earn time."""
        with self.deadline.waiting(self):
            sent = super().send(*arguments)
        self.deadline.earn(sent)
        return sent


def check_addresses(host: str, addresses: Any, nearest: Network) -> None:
    """Reject a host with an address in a nearer network than may be reached.

    Raises:
        NetworkError: The host has an address in a nearer network.
    """
    for address in addresses:
        network = network_of(address)
        if network < nearest:
            raise NetworkError(f"{host} is {network.title} ({address})")


def _resolve(host: str, port: int, timeout_s: float) -> list[Any]:
    """Ask the resolver, which has no timeout of its own, in a thread."""
    try:
        ipaddress.ip_address(host)
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except ValueError:
        pass
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=ask, name="resolver", daemon=True).start()
    try:
        found = answers.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError(f"the name {host} is not resolved in time") from None
    if isinstance(found, UnicodeError):
        raise OSError(f"{host!a} is not the name of a host") from found
    if isinstance(found, Exception):
        raise found
    return found
