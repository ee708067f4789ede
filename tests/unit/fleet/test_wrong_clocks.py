"""Devices with clocks years off, and devices without earlier data."""

import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import select, update

from edgepack.fleet.database import latency, records
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, EventRow, LatencyRow
from edgepack.wire.telemetry import Event
from tests.unit.fleet.test_measurements import window
from tests.unit.fleet.world import NEW, OLD, World, says, telemetry_window

NEVER_SET, FAR_AHEAD = 0.0, 2.0**33
CLOCKS = {"early": NEVER_SET, "late": FAR_AHEAD}
YEAR_S = 365 * 24 * 3600.0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def say(world: World, device: str, state: str, count: int) -> None:
    """Report a state with its event, by the device's own clock."""
    at = CLOCKS[device]
    active = NEW if state == "COMMITTED" else OLD
    said = says(state, 1 if count > 1 else 0, acted=1 if count > 1 else 0)
    said = replace(said, models=says(state, said.sequence, acted=1, active=active).models)
    world.hear(device, replace(said, at=at))
    event = Event(at=at, kind="transition", bundle="digits 2.0.0", to_state=state, rollout="r1")
    world.hear(device, event, "event")


def test_a_rollout_is_finished_and_its_history_is_in_the_order_in_which_it_was_heard(
    world: World,
) -> None:
    for device in CLOCKS:
        world.enroll(device)
    name = world.start(waves="100%")
    world.look()
    for state in ("DOWNLOADING", "SOAKING", "COMMITTED"):
        for device in CLOCKS:
            say(world, device, state, 2)
    view = world.view(name)
    assert (view.state, view.counts) == ("FINISHED", {"COMMITTED": 2})
    with world.store.reading() as session:
        for device in CLOCKS:
            told = records.latest_events(session, device=device, limit=10)
            assert [one.to_state for one in told] == ["COMMITTED", "SOAKING", "DOWNLOADING"]
            assert {one.at for one in told} == {CLOCKS[device]}
        decided = session.scalars(select(AssignmentRow.decided_at)).all()
        seen = session.scalars(select(DeviceRow.last_seen)).all()
    assert all(abs(time.time() - (moment or 0)) < YEAR_S for moment in (*decided, *seen))


def test_neither_a_deadline_nor_what_is_forgotten_goes_by_a_devices_clock(world: World) -> None:
    for device in CLOCKS:
        world.enroll(device)
    name = world.start(waves="100%", deadline_s=600.0)
    world.look()
    for device in CLOCKS:
        say(world, device, "SOAKING", 2)
    assert world.view(name).counts == {"WORKING": 2}, "a clock far ahead makes nobody late"
    with world.store.transaction() as session:
        records.forget_old(session, time.time())
        assert len(session.scalars(select(EventRow.id).where(EventRow.device != "")).all()) == 2
        old = time.time() - 601.0
        session.execute(update(AssignmentRow).values(offered_at=old))
    world.look()
    assert world.view(name).counts == {"SILENT": 2}, "nor does one that stands still make time"
    with world.store.transaction() as session:
        records.forget_old(session, time.time() + YEAR_S)
        assert not session.scalars(select(EventRow.id).where(EventRow.device != "")).all()


def test_what_is_measured_by_a_wrong_clock_is_of_now(world: World) -> None:
    for device, at in CLOCKS.items():
        world.enroll(device)
        world.hear(device, replace(telemetry_window(), window_start=at), "telemetry")
    with world.store.transaction() as session:
        latency.forget_old(session, time.time())
    since = time.time() - 3600.0
    with world.store.reading() as session:
        starts = session.scalars(select(LatencyRow.start).where(LatencyRow.length_s == 60)).all()
    assert starts
    assert all(since < start <= time.time() for start in starts)


def test_a_gate_whose_baseline_is_missing_says_so_and_holds_nothing_up(world: World) -> None:
    for device in CLOCKS:
        world.enroll(device)
    name = world.start(waves="1,100%", evidence_s=1e6)
    world.look()
    for _ in CLOCKS:
        for device in CLOCKS:
            if world.orders(device):
                say(world, device, "COMMITTED", 2)
                world.hear(device, window(NEW, time.time()), "telemetry")
        world.look()
    view = world.view(name)
    assert view.state == "FINISHED"
    verdicts = {gate.name: gate.verdict for gate in view.gates}
    assert verdicts["p95"] == "no baseline"
    assert verdicts["failures"] == "pass"
    assert "breach" not in verdicts.values()
