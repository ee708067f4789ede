"""Leadership of controllers that share a PostgreSQL, without a broker and without waiting."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from edgepack.fleet.controller.controller import Controller
from edgepack.fleet.controller.heartbeat import STUCK_S, Heartbeat
from edgepack.fleet.controller.lead import LeaseElection
from edgepack.fleet.database import audit, lease
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.database.lease import LeadLostError
from edgepack.fleet.database.store import DatabaseAwayError, Store, open_store
from edgepack.fleet.enrolment.authority import Authority
from tests.integration.fleet.postgresql import PostgreSQL
from tests.unit.fleet.world import NEW, World, says, telemetry_window

HOUR_S = 3600.0


@pytest.fixture
def url(postgresql: PostgreSQL) -> str:
    return postgresql.empty_database()


@pytest.fixture
def stores(url: str) -> Iterator[dict[str, Store]]:
    """Yield a controller's store by its name."""
    opened = {name: open_store(url, name) for name in ("a", "b")}
    yield opened
    for store in opened.values():
        store.close()


def elected(
    stores: dict[str, Store],
    name: str,
    changes: list[str] | None = None,
    reaches_the_broker: bool = True,
    heartbeat: Heartbeat | None = None,
) -> LeaseElection:
    """Return a controller that has tried to take the lease once."""
    lead = LeaseElection(
        stores[name],
        holder=name,
        leader_client_id=f"leader-{name}",
        length_s=HOUR_S,
        may_lead=lambda: reaches_the_broker,
        is_working=lambda: heartbeat is None or heartbeat.is_beating,
        on_stuck=lambda: changes.append("stuck") if changes is not None else None,
        on_change=lambda: changes.append(name) if changes is not None else None,
    )
    lead._try()
    return lead


def expire(store: Store) -> None:
    with store.aside() as session:
        session.execute(text("UPDATE leases SET expires_at = 0"))


def test_one_leads_until_it_lets_its_lease_expire(stores: dict[str, Store]) -> None:
    first, second = elected(stores, "a"), elected(stores, "b")
    assert (first.is_held, second.is_held) == (True, False)
    with stores["b"].reading() as session:
        assert lease.leader(session) == "a"
    expire(stores["a"])
    second._try()
    assert second.is_held
    assert second.leader_client_id == "leader-a", "the leader keeps its client id at the broker"
    with pytest.raises(LeadLostError), stores["a"].transaction() as session:
        first.check(session)
    assert not first.is_held
    first._try()
    assert not first.is_held


def test_a_leader_that_was_late_goes_on_while_nobody_took_its_lease(
    stores: dict[str, Store],
) -> None:
    first = elected(stores, "a")
    expire(stores["a"])
    first._try()
    second = elected(stores, "b")
    assert (first.is_held, second.is_held) == (True, False)


def test_a_leader_that_hangs_in_a_transaction_writes_nothing_of_it(
    stores: dict[str, Store],
) -> None:
    first = elected(stores, "a")
    second = elected(stores, "b")

    def hang(session: Session) -> None:
        first.check(session)
        session.execute(text("INSERT INTO unsent (device) VALUES ('cam-1')"))
        expire(stores["b"])
        second._try()  # it waits for nobody
        assert second.is_held

    with pytest.raises(DatabaseAwayError), stores["a"].transaction() as session:
        hang(session)
    with stores["b"].reading() as session:
        assert session.scalar(text("SELECT count(*) FROM unsent")) == 0


def test_a_leader_on_an_older_copy_of_the_database_begins_a_new_term_and_warns(
    stores: dict[str, Store], postgresql: PostgreSQL, tmp_path: Path
) -> None:
    first = elected(stores, "a")
    first._try()
    with stores["a"].transaction() as session:
        begun = first.check(session)
    postgresql.dump(tmp_path / "copy.sql")
    first._try()
    assert first.warnings() == ()
    postgresql.restore(tmp_path / "copy.sql")
    with pytest.raises(LeadLostError), stores["a"].transaction() as session:
        first.check(session)
    expire(stores["a"])
    first._try()
    with stores["a"].transaction() as session:
        assert first.check(session) > begun + 2, "above all numbers that were given"
    (warning,) = first.warnings()
    assert "database.restored" in warning
    with stores["a"].reading() as session:
        (entry,) = audit.entries(session, Wanted(action="database.restored"), 10)
    assert entry.numbers == {"renewals": begun + 1, "renewals before": begun + 2}


def test_of_two_leaders_with_an_equal_epoch_in_an_older_copy_one_leads(
    stores: dict[str, Store], postgresql: PostgreSQL, tmp_path: Path
) -> None:
    elected(stores, "a")
    postgresql.dump(tmp_path / "copy.sql")
    expire(stores["a"])
    former = elected(stores, "b")
    postgresql.restore(tmp_path / "copy.sql")
    expire(stores["a"])
    # This controller knows no number of the time before, so it takes the former's epoch.
    latter = elected(stores, "a")
    with stores["a"].transaction() as session:
        latter.check(session)
    with pytest.raises(LeadLostError), stores["b"].transaction() as session:
        former.check(session)
    former._try()
    assert not former.is_held


def test_a_controller_that_is_stopped_lets_another_lead_at_once(stores: dict[str, Store]) -> None:
    first = elected(stores, "a")
    first._thread.start()
    first.stop()
    assert elected(stores, "b").is_held


def test_a_leader_that_does_not_reach_the_broker_lets_one_lead_that_does(
    stores: dict[str, Store],
) -> None:
    first = elected(stores, "a")
    first.pass_on()
    first._try()
    assert not first.is_held
    assert not elected(stores, "b", reaches_the_broker=False).is_held
    assert elected(stores, "b").is_held


def test_a_leader_whose_thread_hangs_lets_another_lead(stores: dict[str, Store]) -> None:
    now, said = [0.0], list[str]()
    first = elected(stores, "a", said, heartbeat=Heartbeat(lambda: now[0]))
    now[0] = STUCK_S - 1
    first._try()
    assert first.is_held
    now[0] = STUCK_S
    first._try()
    assert not first.is_held
    assert said == ["a", "stuck", "a"]
    assert elected(stores, "b").is_held


def test_the_leader_hears_that_another_controller_left_something_to_do(
    stores: dict[str, Store],
) -> None:
    changes: list[str] = []
    first = elected(stores, "a", changes)
    first._try()
    assert changes == ["a"]
    with stores["b"].transaction() as session:
        lease.ask(session)
    first._try()
    assert changes == ["a", "a"]


def test_a_follower_takes_down_telemetry_alone_and_says_nothing(
    url: str, stores: dict[str, Store], tmp_path: Path
) -> None:
    elected(stores, "a")
    world = World(tmp_path, url=url)
    world.enroll("cam-1")
    world.start()
    world.controller = Controller(
        store=world.store,
        tenant="t",
        inbox=world.inbox,
        broker=world,
        depot=world.depot,
        metadata=world.metadata,
        sign=world.controller_sign,
        is_released=lambda _: True,
        open_authority=lambda: Authority(tmp_path / "pki"),
        auto_enroll=False,
        lead=elected(stores, "b"),
    )
    world.hear("cam-1", says("IDLE"))
    world.hear("cam-1", telemetry_window(), kind="telemetry")
    assert world.inbox.counters == {"left_to_the_leader": 1, "telemetry": 1}
    assert not world.can_publish
    assert world.told("cam-1") == []
    with world.store.reading() as session:
        query = "SELECT count(*) FROM latency WHERE digest = :digest"
        assert session.scalar(text(query), {"digest": NEW.digest}) == 3
        assert session.scalar(text("SELECT count(*) FROM devices WHERE online")) == 0
    world.store.close()


def test_the_clock_of_a_fleet_is_that_of_its_database(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(url)
    right = store.now()
    monkeypatch.setattr("edgepack.fleet.database.store.time.time", lambda: 1000.0)
    store.set_clock()
    assert abs(store.now() - right) < HOUR_S
    store.close()
