"""The controller on a real database, without a broker: what it takes down, answers and drops."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.controller import Controller, Inbox
from edgepack.fleet.database import devices, records
from edgepack.fleet.database.schema import ReleaseRow
from edgepack.fleet.database.store import Store, open_store
from edgepack.fleet.depot.depot import Depot
from edgepack.fleet.documents import RolloutRequest, RolloutView, Selector
from edgepack.fleet.releases import ReleaseFolder
from edgepack.fleet.rollout import membership, rollouts, status
from edgepack.fleet.rollout.offers import name_of
from edgepack.wire import topics
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import (
    Active,
    BundleRef,
    Choice,
    Desired,
    Event,
    Message,
    Need,
    Reported,
    Telemetry,
    decode,
    encode,
)

OLD = BundleRef(name="digits", version="1.0.0", release=1, digest="01" * 32)
NEW = BundleRef(name="digits", version="2.0.0", release=2, digest="02" * 32)


class World:
    """A controller, its database, and what it published."""

    def __init__(self, folder: Path, *, auto_enroll: bool = False) -> None:
        self.store: Store = open_store(f"sqlite:///{folder / 'fleet.db'}")
        self.inbox = Inbox()
        self.published: list[tuple[str, bytes]] = []
        self.depot = Depot(
            tenant="t", releases=ReleaseFolder(folder / "releases"), send=lambda *_: True
        )
        self.controller = Controller(
            store=self.store,
            tenant="t",
            inbox=self.inbox,
            publish=lambda topic, payload: self.published.append((topic, payload)),
            depot=self.depot,
            auto_enroll=auto_enroll,
        )
        with self.store.transaction() as session:
            if session.get(ReleaseRow, NEW.digest) is None:
                session.add_all([_release(OLD), _release(NEW)])

    def enroll(self, device: str, group: str = "g") -> None:
        with self.store.transaction() as session:
            row = devices.enroll(session, device=device, group=group, now=1.0)
            publications = membership.join(session, row, 1.0)
        self.controller.publish(publications)

    def start(self, bundle: BundleRef = NEW, **changes: Any) -> str:
        request = msgspec.structs.replace(
            RolloutRequest(
                digest=bundle.digest, selector=Selector(kind="group", group="g"), waves="100%"
            ),
            **changes,
        )
        with self.store.transaction() as session:
            return name_of(membership.start(session, request, 1.0).number)

    def hear(self, device: str, message: Message | bytes, kind: topics.UpKind = "reported") -> None:
        payload = message if isinstance(message, bytes) else encode(message)
        self.inbox.receive(topics.up("t", device, kind), payload)
        self.controller.turn()

    def look(self) -> None:
        self.inbox.wake()
        self.controller.turn()

    def told(self, device: str) -> list[Desired]:
        topic = topics.desired("t", device)
        return [decode(payload, Desired) for t, payload in self.published if t == topic and payload]

    def view(self, name: str) -> RolloutView:
        with self.store.transaction() as session:
            return status.show_rollout(session, rollouts.find(session, name))


def _release(bundle: BundleRef) -> ReleaseRow:
    return ReleaseRow(
        digest=bundle.digest,
        name=bundle.name,
        version=bundle.version,
        release=bundle.release,
        folder=bundle.digest,
        size_bytes=1000,
        manifest_sha256="aa" * 32,
        manifest_bytes=10,
        signature_sha256="bb" * 32,
        signature_bytes=10,
        added_at=1.0,
    )


def says(
    state: str,
    sequence: int = 0,
    *,
    count: int = 1,
    boot: str = "b1",
    active: BundleRef | None = None,
    online: bool = True,
    because: str = "",
) -> Reported:
    choice = Choice(wanted="", chosen="cpu", provider="CPU", because="", is_fallback=False)
    return Reported(
        online=online,
        at=1.0,
        boot=boot,
        count=count,
        state=state,
        because=because,
        sequence=sequence,
        active=Active(bundle=active, choice=choice, since=1.0) if active else None,
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.close()


def test_a_rollout_offers_and_a_commit_finishes_it(world: World) -> None:
    world.enroll("a")
    name = world.start()
    world.look()
    (desired,) = world.told("a")
    assert desired.bundle == NEW
    assert desired.sequence == 1
    assert desired.rollout == name
    world.hear("a", says("DOWNLOADING", 1))
    assert world.view(name).counts == {"WORKING": 1}
    world.hear("a", says("COMMITTED", 1, count=2, active=NEW))
    assert world.view(name).state == "FINISHED"


def test_a_restarted_controller_goes_on_from_the_database(world: World, tmp_path: Path) -> None:
    world.enroll("a")
    name = world.start()
    world.look()
    world.store.close()
    again = World(tmp_path)
    again.inbox.connected()
    again.controller.turn()
    assert [d.sequence for d in again.told("a")] == [1], "what the broker may have forgotten"
    again.hear("a", says("COMMITTED", 1, active=NEW))
    assert again.view(name).state == "FINISHED"
    again.store.close()


def test_sequences_only_grow_also_beyond_what_a_restored_database_knows(world: World) -> None:
    world.enroll("a")
    world.hear("a", says("COMMITTED", 41, active=OLD))
    world.start()
    world.look()
    assert [d.sequence for d in world.told("a")] == [42]


def test_a_device_that_comes_back_is_told_what_differs_and_is_not_told_twice(world: World) -> None:
    world.enroll("a")
    world.start()
    world.look()
    world.hear("a", says("IDLE", boot="b2"))
    assert len(world.told("a")) == 2
    world.hear("a", says("IDLE", boot="b2", count=2))
    assert len(world.told("a")) == 2, "it was told a moment ago"
    world.hear("a", says("DOWNLOADING", 1, boot="b2", count=3))
    assert len(world.told("a")) == 2, "nothing differs"


def test_a_report_that_was_overtaken_changes_nothing(world: World) -> None:
    world.enroll("a")
    name = world.start()
    world.look()
    world.hear("a", says("COMMITTED", 1, count=5, active=NEW))
    world.hear("a", says("DOWNLOADING", 1, count=4))
    assert world.inbox.counters["stale"] == 1
    with world.store.transaction() as session:
        assert devices.list_devices(session)[0].state == "COMMITTED"
    assert world.view(name).counts == {"COMMITTED": 1}


def test_the_last_will_of_an_older_process_does_not_mark_a_newer_one_offline(world: World) -> None:
    world.enroll("a")
    world.hear("a", says("IDLE", boot="b2"))
    world.hear("a", says("IDLE", boot="b1", online=False))
    with world.store.transaction() as session:
        assert devices.list_devices(session)[0].online
    world.hear("a", says("IDLE", boot="b2", online=False))
    with world.store.transaction() as session:
        assert not devices.list_devices(session)[0].online


@pytest.mark.parametrize("state", ["ROLLED_BACK", "REJECTED"])
def test_a_refusal_is_a_failure_with_its_reason(world: World, state: str) -> None:
    world.enroll("a")
    name = world.start()
    world.look()
    world.hear("a", says(state, 1, because="no room: 3 MB free, 5 MB needed"))
    view = world.view(name)
    assert view.state == "PAUSED"
    assert view.assignments[0].because == "no room: 3 MB free, 5 MB needed"


def test_abort_tells_undecided_devices_to_stay_with_what_they_ran(world: World) -> None:
    world.enroll("a")
    world.enroll("b")
    world.hear("a", says("COMMITTED", active=OLD))
    name = world.start()
    world.look()
    with world.store.transaction() as session:
        publications = rollouts.abort(
            session, rollouts.find(session, name), because="x", recall="undecided", now=2.0
        )
    world.controller.publish(publications)
    last = world.told("a")[-1]
    assert (last.bundle, last.rollback, last.sequence) == (OLD, True, 2)
    assert world.published[-1] == (topics.desired("t", "b"), b""), "nothing is wanted of b any more"
    world.hear("b", says("COMMITTED", 1, active=NEW))
    assert world.view(name).counts == {"WITHDRAWN": 2}, "what was withdrawn stays so"


def test_a_late_device_gets_the_newest_rollout_that_was_not_aborted(world: World) -> None:
    world.enroll("a")
    first = world.start(OLD)
    world.look()
    world.hear("a", says("COMMITTED", 1, active=OLD))
    second = world.start(NEW)
    with world.store.transaction() as session:
        rollouts.abort(session, rollouts.find(session, second), because="x", recall="all", now=2.0)
    world.enroll("late")
    assert [d.rollout for d in world.told("late")] == [first]
    world.enroll("stranger", group="other")
    assert world.told("stranger") == []


def test_a_late_device_joins_the_last_wave_of_a_running_rollout(world: World) -> None:
    world.enroll("a")
    name = world.start()
    world.look()
    world.enroll("late")
    world.look()
    assert [d.rollout for d in world.told("late")] == [name]
    world.hear("a", says("COMMITTED", 1, active=NEW))
    assert world.view(name).state == "RUNNING", "it waits for the late one"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"digest": "77" * 32}, "no release has digest 7777"),
        ({"selector": Selector(kind="group", group="h")}, "no device is enrolled in group h"),
        ({"selector": Selector(kind="devices", devices=("x",))}, "not enrolled: x"),
        ({"soak_s": 60.0, "deadline_s": 60.0}, "no device can soak 60 s within 60 s"),
        ({"soak_s": -1.0}, "a soak takes 0 seconds or more"),
        ({"max_failed_share": 1.5}, "the greatest share of failures is 0% to 100%"),
        ({"min_sample": 0}, "a sample has at least 1 device"),
        ({"waves": "10%"}, "the last wave must reach every device"),
    ],
)
def test_a_rollout_that_makes_no_sense_is_refused_and_leaves_nothing(
    world: World, changes: dict[str, Any], problem: str
) -> None:
    world.enroll("a")
    with pytest.raises(FleetError, match=problem):
        world.start(**changes)
    with world.store.transaction() as session:
        assert status.list_rollouts(session) == ()


def test_devices_that_are_not_enrolled_are_ignored(world: World) -> None:
    for kind in topics.UP_KINDS:
        world.hear("mallory", says("IDLE"), kind)
    assert world.inbox.counters == {"not_enrolled": 4}


def test_auto_enrolment_takes_in_whoever_reports_and_only_well_formed(tmp_path: Path) -> None:
    world = World(tmp_path, auto_enroll=True)
    world.hear("new", b"no report")
    world.hear("new", says("IDLE"), "need")
    assert world.inbox.counters == {"malformed": 1, "not_enrolled": 1}
    world.hear("new", says("IDLE"))
    with world.store.transaction() as session:
        (device,) = devices.list_devices(session)
    assert (device.device, device.group) == ("new", "auto")
    world.store.close()


@pytest.mark.parametrize("kind", topics.UP_KINDS)
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xfe",
        b"{}",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"v":2,"online":true,"at":1}',
        b'{"v":1,"online":true,"at":1,"sequence":' + b"9" * 400 + b"}",
        b'{"v":1,"online":true,"at":1,"sequence":-5}',
        b'{"v":1,"digest":"../../etc","files":[{"sha256":"x","chunk_count":-1,"missing":"AAAA"}]}',
        b'{"v":1,"at":NaN,"kind":"transition","bundle":"x"}',
    ],
)
def test_a_malformed_message_is_dropped_counted_and_harms_nobody(
    world: World, kind: topics.UpKind, payload: bytes
) -> None:
    world.enroll("a")
    world.enroll("b")
    name = world.start()
    world.look()
    world.inbox.receive(topics.up("t", "a", kind), payload)
    world.hear("b", says("COMMITTED", 1, active=NEW))
    assert world.view(name).counts == {"OFFERED": 1, "COMMITTED": 1}
    assert world.inbox.counters["reported"] >= 1


@settings(max_examples=25, deadline=None)
@given(payload=st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_payload_whatever_stops_the_controller(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes
) -> None:
    world = World(tmp_path_factory.mktemp("fuzz"))
    world.enroll("a")
    for kind in topics.UP_KINDS:
        world.inbox.receive(topics.up("t", "a", kind), payload)
    world.inbox.receive("ep/1/t/d/a/up/reported/more", payload)
    world.inbox.receive("something/else", payload)
    world.hear("a", says("IDLE"))
    with world.store.transaction() as session:
        assert devices.list_devices(session)[0].online
    world.store.close()


def test_a_message_that_breaks_the_database_is_dropped_alone(world: World) -> None:
    world.enroll("a")
    beyond = Event(at=1.0, kind="warning", bundle="x")
    with world.store.transaction() as session:
        records.add_device_event(session, "a", beyond, 1.0)
    world.inbox.receive(
        topics.up("t", "a", "telemetry"),
        encode(_telemetry()).replace(b'"window_s":30.0', b'"window_s":1e400'),
    )
    world.hear("a", says("IDLE"))
    with world.store.transaction() as session:
        assert devices.list_devices(session)[0].online


def _telemetry() -> Telemetry:
    recorder = LatencyRecorder()
    for latency_ms in (1.0, 2.0, 3.0):
        recorder.record(latency_ms)
    return Telemetry(
        digest=NEW.digest,
        variant="cpu",
        provider="CPUExecutionProvider",
        window_start=5.0,
        window_s=30.0,
        latency=recorder.snapshot(),
    )


def test_a_window_that_comes_twice_counts_once_and_histograms_are_merged(world: World) -> None:
    for device in ("a", "b"):
        world.enroll(device)
        world.hear(device, _telemetry(), "telemetry")
    world.hear("a", _telemetry(), "telemetry")
    with world.store.transaction() as session:
        (row,) = records.latency_of(session, NEW.digest)
    assert (row.devices, row.inferences) == (2, 6)
    assert row.p50_ms == pytest.approx(2.0, rel=0.03)


def test_needs_go_to_the_depot_and_an_unknown_release_is_counted(world: World) -> None:
    world.enroll("a")
    world.hear("a", Need(digest="x" * 5000, files=()), "need")
    assert world.inbox.counters["need"] == 1


def test_what_is_old_is_forgotten(world: World) -> None:
    def count(session: Session) -> int:
        return len(records.events_after(session, 0, 10))

    with world.store.transaction() as session:
        records.add_device_event(session, "a", Event(at=1.0, kind="warning", bundle="x"), 1.0)
        assert count(session) == 1
        records.forget_old(session, records.KEEP_S)
        assert count(session) == 1
        records.forget_old(session, records.KEEP_S + 2)
        assert count(session) == 0


def test_the_controllers_own_name_and_impossible_names_are_refused(world: World) -> None:
    with pytest.raises(FleetError, match="is the controller's own name"):
        world.enroll("edgepack-controller")
    for name in ("", "a/b", "+", "#", "a b", "x" * 65):
        with pytest.raises(FleetError, match="must be 1 to 64 of"):
            world.enroll(name)


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    from sqlalchemy import create_engine, text

    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    open_store(url).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE schema_version SET version = 99"))
    engine.dispose()
    with pytest.raises(FleetError, match="tables of version 99, this edgepack needs 1"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("nonsense", "no database URL"),
        ("sqlite:////no/such/folder/fleet.db", "cannot open the database"),
        ("postgresql+psycopg://localhost/x", "driver psycopg is not installed"),
    ],
)
def test_a_database_that_cannot_be_opened_says_why(url: str, problem: str) -> None:
    with pytest.raises(FleetError, match=problem):
        open_store(url)


def test_a_device_that_changes_its_group_stays_in_the_rollout_that_it_is_in(world: World) -> None:
    world.enroll("a")
    world.enroll("b", group="h")
    first = world.start()
    second = world.start(selector=Selector(kind="group", group="h"))
    world.look()
    world.enroll("a", group="h")
    world.look()
    assert [d.rollout for d in world.told("a")] == [first]
    assert len(world.view(second).assignments) == 1


def test_a_silent_device_that_speaks_up_later_is_believed(world: World) -> None:
    world.enroll("a")
    name = world.start(soak_s=0.0, deadline_s=0.001)
    world.look()
    world.hear("a", says("DOWNLOADING", 0))
    world.look()
    assert world.view(name).counts == {"SILENT": 1}
    world.hear("a", says("DOWNLOADING", 1, count=2))
    assert world.view(name).counts == {"SILENT": 1}, "not yet decisive"
    world.hear("a", says("COMMITTED", 1, count=3, active=NEW))
    assert world.view(name).counts == {"COMMITTED": 1}
