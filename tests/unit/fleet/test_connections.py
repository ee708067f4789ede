"""Limits of clients' connections in number and time, without a network."""

import ipaddress
import logging

import pytest

from edgepack.fleet.commands.repeated_records import MOST_ALIKE, WINDOW_S, RepeatedRecords
from edgepack.fleet.server.connections import (
    BODY_S,
    GRACE_S,
    HEADER_S,
    LEAST_BYTES_PER_S,
    QUIET_S,
    SEND_S,
    SEND_STEP_BYTES,
    WARN_COUNT,
    Connection,
    ConnectionLimits,
    Connections,
    Phase,
)
from edgepack.fleet.server.descriptors import LEAST_CONNECTIONS, RESERVED, fit_connections

LIMITS = ConnectionLimits(total=10, per_address=4, proxies=(ipaddress.ip_network("10.0.0.0/24"),))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Peer:
    phase: Phase = "head"
    unsent_bytes = 0
    is_dropped = False

    def drop(self) -> None:
        self.is_dropped = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def connections(clock: Clock) -> Connections:
    return Connections(LIMITS, clock)


def admit(connections: Connections, host: str) -> tuple[Connection, Peer]:
    peer = Peer()
    connection = connections.admit(host, peer)
    assert connection is not None
    return connection, peer


def test_the_oldest_unknown_connection_of_an_address_makes_way(connections: Connections) -> None:
    known, known_peer = admit(connections, "192.0.2.1")
    known.is_known = True
    _, busy_peer = admit(connections, "192.0.2.1")
    busy_peer.phase = "work"
    _, oldest = admit(connections, "192.0.2.1")
    _, newer = admit(connections, "192.0.2.1")
    admit(connections, "192.0.2.1")
    dropped = [one.is_dropped for one in (known_peer, busy_peer, oldest, newer)]
    assert dropped == [False, False, True, False]
    assert connections.count == 4


def test_nobody_is_admitted_where_nobody_can_make_way(connections: Connections) -> None:
    for _ in range(4):
        admit(connections, "192.0.2.1")[0].is_known = True
    assert connections.admit("192.0.2.1", Peer()) is None
    admit(connections, "192.0.2.2")
    assert connections.count == 5
    assert connections.dropped["too many from one address"] == 1


def test_clients_behind_a_proxy_share_only_the_total(connections: Connections) -> None:
    peers = [admit(connections, "10.0.0.7")[1] for _ in range(10)]
    assert not any(one.is_dropped for one in peers)
    admit(connections, "192.0.2.1")
    assert peers[0].is_dropped, "the address with the most connections makes way"
    assert connections.count == 10


def test_addresses_of_one_ipv6_network_count_as_one(connections: Connections) -> None:
    first = admit(connections, "2001:db8::1")[1]
    for number in range(4):
        admit(connections, f"2001:db8::{number + 2:x}")
    assert first.is_dropped
    mapped = [admit(connections, "::ffff:192.0.2.9")[1] for _ in range(4)]
    admit(connections, "192.0.2.9")
    assert mapped[0].is_dropped


def test_forgetting_a_connection_twice_counts_it_once(connections: Connections) -> None:
    connection, _ = admit(connections, "192.0.2.1")
    connections.forget(connection)
    connections.forget(connection)
    assert connections.count == 0


@pytest.mark.parametrize("phase", ["handshake", "head"])
def test_a_head_has_a_deadline_however_it_drips(
    connections: Connections, clock: Clock, phase: Phase
) -> None:
    connection, peer = admit(connections, "192.0.2.1")
    peer.phase = phase
    connections.look()
    for _ in range(int(HEADER_S)):
        clock.now += 1
        connection.received += 1
        connections.look()
        assert not peer.is_dropped
    clock.now += 1
    connections.look()
    assert peer.is_dropped
    assert connections.count == 0


def test_each_request_of_a_connection_has_its_own_deadline(
    connections: Connections, clock: Clock
) -> None:
    connection, peer = admit(connections, "192.0.2.1")
    for _ in range(10):
        clock.now += HEADER_S / 2
        connection.finished += 1
        connections.look()
    assert not peer.is_dropped


def test_a_body_without_a_token_has_a_deadline(connections: Connections, clock: Clock) -> None:
    connection, peer = admit(connections, "192.0.2.1")
    peer.phase = "body"
    connections.look()
    clock.now, connection.received = BODY_S, 10_000
    connections.look()
    assert not peer.is_dropped
    clock.now += 1
    connections.look()
    assert peer.is_dropped


@pytest.mark.parametrize(
    ("bytes_per_s", "is_dropped"), [(2 * LEAST_BYTES_PER_S, False), (LEAST_BYTES_PER_S // 4, True)]
)
def test_an_upload_may_take_as_long_as_it_moves(
    connections: Connections, clock: Clock, bytes_per_s: int, is_dropped: bool
) -> None:
    connection, peer = admit(connections, "192.0.2.1")
    connection.is_known, peer.phase = True, "body"
    connections.look()
    for _ in range(int(10 * GRACE_S)):
        clock.now += 1
        connection.received += bytes_per_s
        connections.look()
    assert peer.is_dropped == is_dropped


def test_an_upload_that_rests_is_dropped(connections: Connections, clock: Clock) -> None:
    connection, peer = admit(connections, "192.0.2.1")
    connection.is_known, peer.phase, connection.received = True, "body", 10**9
    connections.look()
    clock.now += QUIET_S + 1
    connections.look()
    assert peer.is_dropped


def test_a_client_must_read_its_answer(connections: Connections, clock: Clock) -> None:
    _, slow = admit(connections, "192.0.2.1")
    _, idle = admit(connections, "192.0.2.2")
    for peer in (slow, idle):
        peer.phase, peer.unsent_bytes = "send", 10**6
    for _ in range(4):
        clock.now += SEND_S / 2 + 1
        slow.unsent_bytes -= SEND_STEP_BYTES
        connections.look()
    assert (slow.is_dropped, idle.is_dropped) == (False, True)


def test_dropped_connections_are_logged_together_and_become_a_warning(
    connections: Connections, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(WARN_COUNT + 10):
        admit(connections, "192.0.2.1")
        connections.look()
    assert len(caplog.records) == 1
    (warning,) = connections.warnings()
    assert "192.0.2.1" in warning
    assert "--trusted-proxy" in warning
    clock.now += 3600
    connections.look()
    assert len(caplog.records) == 2
    clock.now += 3600
    assert connections.warnings() == ()


def test_the_warning_names_the_reason_and_the_address_of_the_last_minutes(
    connections: Connections, clock: Clock
) -> None:
    for _ in range(10 * WARN_COUNT):
        admit(connections, "192.0.2.1")
        connections.look()
    clock.now += 60
    connections.look()
    clock.now += 3600
    connections.look()
    for number in range(2 * WARN_COUNT):
        admit(connections, f"192.0.2.{2 + number % 8}")
        connections.look()
    admit(connections, "192.0.2.200")
    clock.now += 60
    connections.look()
    (warning,) = connections.warnings()
    assert "too many in all" in warning
    assert "192.0.2.1," not in warning


@pytest.mark.parametrize(
    ("wanted", "limit", "fits"),
    [
        (1000, 65_536, 1000),
        (1000, 1024, 1024 - RESERVED - 40),
        (1000, 1100, 1100 - RESERVED - 40),
        (1000, 128, LEAST_CONNECTIONS),
        (60_000, 20_000, 20_000 - RESERVED - 40),
    ],
)
def test_connections_leave_descriptors_for_broker_and_database(
    wanted: int, limit: int, fits: int
) -> None:
    assert fit_connections(wanted, limit, 40) == fits


def test_a_repeated_error_is_logged_once_and_counted(clock: Clock) -> None:
    written: list[str] = []

    class Target(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(record.getMessage())

    handler = RepeatedRecords(Target(), clock)
    log = logging.Logger("test")
    log.addHandler(handler)
    for _ in range(1000):
        log.error("no descriptors")
    assert written == ["no descriptors"]
    clock.now += WINDOW_S
    handler.close_windows()
    assert written[1:] == ["999 more in 60 s like: no descriptors"]
    del written[:]
    for number in range(1000):
        log.warning("device=%d strange", number)
        log.info("transition %d", number)
    assert sum("strange" in one for one in written) == MOST_ALIKE
    assert sum("transition" in one for one in written) == 1000
    handler.close()
    assert written[-1].startswith(f"{1000 - MOST_ALIKE} more in")
