"""The controller drops what is malformed, unknown or breaks the database, and goes on."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.errors import FleetError
from edgepack.fleet.database import inventory, records
from edgepack.wire import topics
from edgepack.wire.messages import (
    Event,
    encode,
)
from tests.unit.fleet.world import NEW, World, says, telemetry_window


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
        (device,) = inventory.list_devices(session)
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
        assert inventory.list_devices(session)[0].online
    world.store.close()


def test_a_message_that_breaks_the_database_is_dropped_alone(world: World) -> None:
    world.enroll("a")
    beyond = Event(at=1.0, kind="warning", bundle="x")
    with world.store.transaction() as session:
        records.add_device_event(session, "a", beyond, 1.0)
    world.inbox.receive(
        topics.up("t", "a", "telemetry"),
        encode(telemetry_window()).replace(b'"window_s":30.0', b'"window_s":1e400'),
    )
    world.hear("a", says("IDLE"))
    with world.store.transaction() as session:
        assert inventory.list_devices(session)[0].online


def test_the_controllers_own_name_and_impossible_names_are_refused(world: World) -> None:
    with pytest.raises(FleetError, match="is the controller's own name"):
        world.enroll("edgepack-controller")
    for name in ("", "a/b", "+", "#", "a b", "x" * 65):
        with pytest.raises(FleetError, match="must be 1 to 64 of"):
            world.enroll(name)
