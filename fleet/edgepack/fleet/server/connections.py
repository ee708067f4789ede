"""Connections of the API's clients: how many there may be, and how long a client may take.

Clients without a valid token make way: if an address or the server has too many connections, the
oldest connection that waits for its client is dropped. So half-sent requests, as many as there may
be, do not keep anybody out.
"""

import ipaddress
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

import msgspec
from starlette.requests import Request

from edgepack.fleet.server.settings import Network
from edgepack.text import counted, printable

log = logging.getLogger(__name__)

HEADER_S = 10.0
"""For a TLS handshake, and again for the head of each request."""
BODY_S = 30.0
"""For the body of a request without a token; its longest is a form of 64 KiB."""
QUIET_S = 30.0
"""Longest pause in a body that a token allows."""
LEAST_BYTES_PER_S, GRACE_S = 1024, 60.0
"""Slowest body that a token allows, on average, after the grace."""
SEND_S, SEND_STEP_BYTES = 60.0, 16 * 1024
"""A client must read so much of its answer, or the rest of it, in that time."""
REPORT_S = 60.0
"""Dropped connections are logged once in that time, with their count."""
WARN_S, WARN_COUNT = 600.0, 100
"""So many dropped connections in that time are a warning."""
PARAMETER = "connection"
NO_ROOM_HERE, NO_ROOM = "too many from one address", "too many in all"
NO_HANDSHAKE, NO_HEAD = "no TLS handshake in time", "no head in time"
NO_BODY, SLOW_BODY = "no body in time", "body too slow"
NOT_READ = "answer not read"
REASONS = (NO_ROOM_HERE, NO_ROOM, NO_HANDSHAKE, NO_HEAD, NO_BODY, SLOW_BODY, NOT_READ)

Phase = Literal["handshake", "head", "body", "send", "work"]


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the number of connections.

    Attributes:
        total: At most so many together.
        per_address: Most connections of a client address; of IPv6, of a /64 network.
        proxies: Addresses of reverse proxies: many clients share a proxy, so only `total` holds.
    """

    total: int = 1000
    per_address: int = 100
    proxies: tuple[Network, ...] = ()


class Peer(Protocol):
    """The server's end of a connection."""

    @property
    def phase(self) -> Phase:
        """Phase of the connection, as a wait for an event."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client did not take yet."""

    def drop(self) -> None:
        """Close at once."""


class Connection:
    """Accepted connection.

    Attributes:
        address: Of the client, as counted by limits.
        is_known: Whether a request on the connection had a valid token or session.
        received: Bytes that came.
        finished: Requests that were answered.
        peer: The server's end of the connection.
    """

    def __init__(self, address: str, peer: Peer, now: float) -> None:
        self.address, self.peer = address, peer
        self.is_known = False
        self.received = self.finished = 0
        self._phase: tuple[Phase, int] = (peer.phase, 0)
        self._since, self._received_before = now, 0
        self._last_byte = (0, now)
        self._unsent: tuple[int, float] | None = None

    def is_waiting(self) -> bool:
        """Return whether the server waits for the client, and not the client for the server."""
        return self.peer.phase != "work"

    def find_delay(self, now: float) -> str:
        """Return which deadline the client missed; "" for none. Call this about once a second."""
        phase = (self.peer.phase, self.finished)
        if phase != self._phase:
            self._phase, self._since = phase, now
            self._received_before, self._last_byte = self.received, (self.received, now)
        if self.received != self._last_byte[0]:
            self._last_byte = (self.received, now)
        if self._is_reading_slowly(now):
            return NOT_READ
        took_s = now - self._since
        match phase[0]:
            case "handshake" | "head" if took_s > HEADER_S:
                return NO_HANDSHAKE if phase[0] == "handshake" else NO_HEAD
            case "body" if self.is_known:
                least = LEAST_BYTES_PER_S * (took_s - GRACE_S)
                is_slow = self.received - self._received_before < least
                return SLOW_BODY if is_slow or now - self._last_byte[1] > QUIET_S else ""
            case "body" if took_s > BODY_S:
                return NO_BODY
        return ""

    def _is_reading_slowly(self, now: float) -> bool:
        unsent = self.peer.unsent_bytes
        if unsent == 0:
            self._unsent = None
        elif self._unsent is None or abs(unsent - self._unsent[0]) >= SEND_STEP_BYTES:
            self._unsent = (unsent, now)
        return self._unsent is not None and now - self._unsent[1] > SEND_S


class Connections:
    """The connections of a server; all calls except reads of numbers come from its loop.

    Args:
        limits: How many there may be.
        clock: Monotonic, seconds.

    Attributes:
        limits: Limits of connections; `serve` lowers the limits to the process's descriptors.
        dropped: Connections that were dropped, by reason.
    """

    def __init__(
        self, limits: ConnectionLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits, self._clock = limits, clock
        self.dropped: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._count = 0
        self._unreported: Counter[str] = Counter()
        self._from: Counter[str] = Counter()
        self._reported_at = -REPORT_S
        self._recent: deque[tuple[float, Counter[str], str, int]] = deque()

    @property
    def count(self) -> int:
        """Connections that are open now."""
        return self._count

    def admit(self, host: str, peer: Peer) -> Connection | None:
        """Count a new connection; make room if full.

        Returns:
            None if there is no room: the caller closes the connection.
        """
        address = count_as(host)
        own = self._by_address.get(address, {})
        if (
            len(own) >= self.limits.per_address
            and not self._is_proxy(host)
            and not self._make_room((own,), NO_ROOM_HERE)
        ):
            return None
        if self._count >= self.limits.total:
            busiest_first = sorted(self._by_address.values(), key=len, reverse=True)
            if not self._make_room(busiest_first, NO_ROOM):
                return None
        connection = Connection(address, peer, self._clock())
        self._by_address.setdefault(address, {})[connection] = None
        self._count += 1
        return connection

    def forget(self, connection: Connection) -> None:
        """Remove a connection from the count; repeated calls do no harm."""
        own = self._by_address.get(connection.address, {})
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._by_address[connection.address]

    def look(self) -> None:
        """Drop the connections whose clients missed a deadline, and log the drops."""
        now = self._clock()
        every = [one for own in self._by_address.values() for one in own]
        for connection in every:
            if because := connection.find_delay(now):
                self._drop(connection, because)
        if self._unreported and now - self._reported_at >= REPORT_S:
            self._report(now)

    def note_refused(self, because: str, host: str = "") -> None:
        """Count a connection that was never admitted."""
        self._count_dropped(because, count_as(host) if host else "")

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about dropped connections."""
        since = self._clock() - WARN_S
        recent = [one for one in tuple(self._recent) if one[0] >= since]
        reasons, addresses = Counter(self._unreported), Counter[str]()
        for _, counts, address, count in recent:
            reasons.update(counts)
            addresses[address] += count
        total = reasons.total()
        if total < WARN_COUNT or not recent:
            return ()
        (reason, _), (address, _) = reasons.most_common(1)[0], addresses.most_common(1)[0]
        return (
            f"The API dropped {counted(total, 'connection')} in the last 10 minutes, the most of "
            f"them from {address}, the most of them because: {reason}. Keep that address "
            "out with a firewall; if it is a reverse proxy of yours, name it: edgepack fleet serve "
            "--trusted-proxy ADDRESS",
        )

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.limits.proxies)

    def _make_room(self, groups: Sequence[Iterable[Connection]], because: str) -> bool:
        candidates = (one for group in groups for one in group)
        found = next((one for one in candidates if not one.is_known and one.is_waiting()), None)
        if found is None:
            self._count_dropped(because, next(iter(groups[0])).address)
            return False
        self._drop(found, because)
        return True

    def _drop(self, connection: Connection, because: str) -> None:
        self.forget(connection)
        self._count_dropped(because, connection.address)
        connection.peer.drop()

    def _count_dropped(self, because: str, address: str) -> None:
        self.dropped[because] += 1
        self._unreported[because] += 1
        if len(self._from) < self.limits.total or address in self._from:
            self._from[address] += 1

    def _report(self, now: float) -> None:
        reasons = ", ".join(f"{count} {reason}" for reason, count in self._unreported.most_common())
        host, count = self._from.most_common(1)[0]
        address = printable(host)
        log.warning("connections dropped: %s; most from=%s", reasons, address)
        self._recent.append((now, self._unreported.copy(), address, count))
        while self._recent[0][0] < now - WARN_S:
            self._recent.popleft()
        self._unreported.clear()
        self._from.clear()
        self._reported_at = now


def note_known(request: Request) -> None:
    """Mark a request's connection: its client showed a valid token or session."""
    connection = request.scope.get("state", {}).get(PARAMETER)
    if isinstance(connection, Connection):
        connection.is_known = True


def count_as(host: str) -> str:
    """Return the key for counting an address: IPv6 by its /64 network, which a single client can
    fill.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
