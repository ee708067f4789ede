"""The audit log: actor, object and numbers, in the transaction of the action."""

import pytest

from edgepack.errors import FleetError
from edgepack.fleet.database import audit, devices, enrolment, records
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.documents.audit import AuditEntry
from edgepack.fleet.rollouts import execution, steps
from tests.unit.fleet.world import NEW, OLD, World, says


@pytest.fixture
def world(world: World) -> World:
    world.look()  # old entries are forgotten now and not again: those of tests are of long ago
    return world


def log_of(world: World, limit: int = 1000, **wanted: object) -> list[AuditEntry]:
    """Return the log, oldest first."""
    with world.store.reading() as session:
        found = audit.entries(session, Wanted(**wanted), limit)  # type: ignore[arg-type]
    return list(reversed(found))


def test_a_rollout_leaves_each_step_with_its_actor_and_its_numbers(world: World) -> None:
    for device in "abc":
        world.enroll(device)
    name = world.start(waves="1,100%", max_failed_share=0.2)
    world.look()
    (first,) = (device for device in "abc" if world.orders(device))
    world.hear(first, says("ROLLED_BACK", 1, because="too hot"))
    with world.store.transaction("token alice") as session:
        execution.resume(session, execution.find(session, name), 5.0)
    world.look()
    for device in set("abc") - {first}:
        world.hear(device, says("COMMITTED", 1, active=NEW))
    entries = log_of(world, rollout=name)
    assert [(entry.actor, entry.action) for entry in entries] == [
        ("controller", "rollout.start"),
        ("controller", "rollout.wave"),
        ("gate failures", "rollout.breach"),
        ("token alice", "rollout.resume"),
        ("controller", "rollout.wave"),
        ("controller", "rollout.finish"),
    ]
    start, wave, breach, resume, _, finish = entries
    assert start.numbers["waves"] == "1,100%"
    assert (start.numbers["devices"], start.numbers["max_failed_share"]) == (3, 0.2)
    assert wave.numbers == {"wave": 1, "devices": 1}
    assert breach.numbers == {
        "gate": "failures",
        "hardware_class": "",
        "wave": 1,
        "devices": 1,
        "value": 1.0,
        "now": 1.0,
        "threshold": 0.2,
        "on_breach": "pause",
    }
    assert resume.numbers == {"failed": 1, "waiting": 2}
    assert finish.because == "2 of 3 devices committed, 1 failed or stayed silent"
    assert {(entry.model, entry.digest) for entry in entries} == {(NEW.name, NEW.digest)}


def test_a_silence_and_an_aborting_breach_are_told(world: World) -> None:
    world.enroll("a")
    name = world.start(deadline_s=20.0, on_breach="abort")
    with world.store.transaction() as session:
        steps.step(session, 10.0, lambda _: True)
        steps.step(session, 100.0, lambda _: True)
    entries = log_of(world, rollout=name)
    assert [entry.action for entry in entries][2:] == [
        "rollout.silent",
        "rollout.breach",
        "rollout.abort",
    ]
    assert entries[2].because == "a: said nothing decisive within 20 s"
    assert entries[3].numbers["on_breach"] == "abort"


def test_a_rollback_names_the_rollouts_that_it_starts_and_ends(world: World) -> None:
    world.enroll("a")
    world.hear("a", says("COMMITTED", active=OLD))
    name = world.start()
    world.look()
    world.hear("a", says("COMMITTED", 1, active=NEW, previous=OLD))
    (back,) = world.take_back(name)
    assert [e.action for e in log_of(world, rollout=back)] == ["rollout.rollback", "rollout.wave"]
    assert log_of(world, rollout=name)[-1].action == "rollout.abort"


def test_what_is_done_to_devices_is_told_and_what_changes_nothing_is_not(world: World) -> None:
    world.enroll("a")
    world.change("a", group="h", labels={"site": "berlin"})
    world.change("a", group="h", labels={"site": "berlin"})
    with world.store.transaction("token bob") as session:
        rows = devices.find_devices(session, ("a",))
        enrolment.remove(session, rows, 3.0)
    entries = log_of(world, device="a")
    assert [(entry.action, entry.because) for entry in entries] == [
        ("device.enroll", "enrolled in group g"),
        ("device.move", "from group g to h"),
        ("device.label", "site=berlin"),
        ("device.remove", "removed by a person"),
    ]
    assert entries[-1].actor == "token bob"


def test_what_is_rolled_back_in_the_database_is_not_in_the_log(world: World) -> None:
    def enroll_twice() -> None:
        with world.store.transaction() as session:
            enrolment.enroll(session, device="a", group="g", now=1.0)
            enrolment.enroll(session, device="a", group="g", now=1.0)

    with pytest.raises(FleetError):
        enroll_twice()
    assert log_of(world) == []


def test_entries_come_newest_first_in_pages_and_filtered(world: World) -> None:
    for number in range(5):
        world.enroll(f"d{number}")
    world.start()
    with world.store.reading() as session:
        newest = audit.entries(session, Wanted(action="device"), 2)
        older = audit.entries(session, Wanted(action="device", before=newest[-1].id), 10)
        since = audit.entries(session, Wanted(after=newest[-1].id), 10)
    assert [entry.device for entry in (*newest, *older)] == ["d4", "d3", "d2", "d1", "d0"]
    assert [entry.action for entry in since] == ["rollout.start", "device.enroll"]
    assert log_of(world, actor="con%") == [], "a sign of the database's is a sign like any other"
    assert len(log_of(world, actor="con")) == 6
    assert log_of(world, model="other") == []


def test_old_entries_are_forgotten(world: World) -> None:
    world.enroll("a")
    with world.store.transaction() as session:
        audit.forget_old(session, 1.0 + audit.KEEP_S)
        assert audit.entries(session, Wanted(), 10)
        audit.forget_old(session, 2.0 + audit.KEEP_S)
        records.forget_old(session, 2.0 + audit.KEEP_S)
        assert audit.entries(session, Wanted(), 10) == ()
