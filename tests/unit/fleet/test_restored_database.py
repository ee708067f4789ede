"""A database restored from an older copy knows less than the devices: both continue."""

import sqlite3
from pathlib import Path

import msgspec

from edgepack.wire import topics
from edgepack.wire.batches import Batch, Received
from edgepack.wire.messages import decode, encode
from edgepack.wire.signed import sign_batch
from tests.simulators.signing import KEY, sign_with
from tests.unit.fleet.world import NEW, OLD, World, says, telemetry_window


def restored(world: World, copy: Path) -> World:
    """Return a new controller on the copy."""
    world.store.close()
    for left in copy.parent.glob("fleet.db*"):
        left.unlink()
    sqlite3.connect(copy).backup(sqlite3.connect(copy.parent / "fleet.db"))
    return World(copy.parent)


def copied(world: World, folder: Path) -> Path:
    world.store.close()
    copy = folder / "copy.db"
    sqlite3.connect(folder / "fleet.db").backup(sqlite3.connect(copy))
    return copy


def test_what_is_said_before_the_device_reports_is_said_again_above_what_it_acted_on(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.enroll("a")
    copy = copied(world, tmp_path)
    world = restored(world, copy)
    name = world.start()
    world.look()
    assert [order.sequence for order in world.orders("a")] == [1]
    # It has restarted since: all that it knows of earlier orders is what it acted on.
    world.hear("a", says("COMMITTED", 0, acted=41, active=OLD))
    assert [order.sequence for order in world.orders("a")] == [1, 42]
    assert world.told("a")[-1].sequence == 42
    world.hear("a", says("COMMITTED", 42, acted=42, active=NEW))
    assert world.view(name).state == "FINISHED"
    assert len(world.orders("a")) == 2, "once is enough"
    world.store.close()


def test_what_was_decided_is_not_said_again_and_nothing_is_lowered(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.enroll("a")
    world.start(OLD)
    world.look()
    world.hear("a", says("COMMITTED", 1, acted=1, active=OLD))
    world.look()
    copy = copied(world, tmp_path)
    world = restored(world, copy)
    # Since the copy was made release 2 came, of which this database knows nothing.
    world.hear("a", says("COMMITTED", 7, acted=7, active=NEW, previous=OLD))
    assert [order.sequence for order in world.orders("a")] == [1], "the old order, as it was"
    assert world.told("a")[-1].sequence == 8
    reported = says("COMMITTED", 7, acted=7, active=NEW, previous=OLD)
    world.hear("a", reported)
    assert len(world.told("a")) == 1
    world.store.close()


def test_a_restored_device_hears_the_newest_number_of_its_telemetry(world: World) -> None:
    world.enroll("a")
    world.hear("a", says("IDLE"))
    tenant, device, boot = world.signer("a").place
    heard = []
    for first in (40, 8):  # The latter of an older copy of the state folder.
        batch = Batch(
            tenant=tenant,
            device=device,
            kind="telemetry",
            boot=boot,
            session=world.signer("a").word,
            journal="j",
            sequence=first,
            messages=(msgspec.Raw(encode(telemetry_window())),) * 2,
        )
        world.inbox.receive(topics.up("t", "a", "telemetry"), sign_batch(batch, sign_with(KEY)))
        world.controller.turn()
        heard += [decode(it, Received) for to, it in world.sent if to == topics.received("t", "a")]
        world.sent.clear()
    assert heard == [
        Received(journal="j", until=41, newest=41),
        Received(journal="j", until=9, newest=41),
    ]
    assert (world.inbox.counters["telemetry"], world.inbox.counters["stale"]) == (1, 1)


def test_a_release_that_was_installed_on_the_device_is_left_alone(world: World) -> None:
    world.enroll("a")
    world.start(OLD)
    world.look()
    world.hear("a", says("COMMITTED", 1, acted=1, active=OLD))
    world.hear("a", says("COMMITTED", 0, acted=1, active=NEW))
    told = [desired.sequence for desired in world.told("a")]
    assert set(told) == {1}, "the same word at most: it says so itself that it has heard none yet"


def test_a_sequence_that_no_controller_can_have_given_is_malformed(world: World) -> None:
    world.enroll("a")
    for sequence in (-1, 2**32 + 1, 2**53, 10**30):
        world.hear("a", says("IDLE", 0, acted=sequence))
    assert world.inbox.counters == {"malformed": 4}
    world.start()
    world.look()
    assert [order.sequence for order in world.orders("a")] == [1]


def test_a_number_that_the_device_knows_for_another_release_is_not_taken_for_ours(
    world: World,
) -> None:
    world.enroll("a")
    name = world.start(NEW)
    world.look()
    # Number 1 brought it another release, of which this database knows nothing.
    world.hear("a", says("COMMITTED", 1, acted=1, active=OLD, target=OLD))
    assert world.view(name).counts == {"OFFERED": 1}
    assert [order.sequence for order in world.orders("a")] == [1, 2]
    world.hear("a", says("DOWNLOADING", 2, acted=2, active=OLD, target=NEW))
    assert world.view(name).counts == {"WORKING": 1}
    world.hear("a", says("COMMITTED", 2, acted=2, active=NEW, target=NEW))
    assert world.view(name).state == "FINISHED"
    assert len(world.orders("a")) == 2


def test_a_person_at_the_device_who_takes_over_is_not_overruled(world: World) -> None:
    world.enroll("a")
    world.start(NEW)
    world.look()
    world.hear("a", says("DOWNLOADING", 1, acted=1, target=NEW))
    world.hear("a", says("COMMITTED", 0, acted=1, active=OLD, target=OLD))
    assert {order.sequence for order in world.orders("a")} == {1}
