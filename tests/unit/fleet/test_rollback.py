"""A release is taken back by rollouts of previous releases, which the devices confirm."""

from collections.abc import Collection
from typing import Any

import pytest
from msgspec.structs import replace

from edgepack.errors import FleetError
from edgepack.fleet.documents.previews import RollbackPreview
from edgepack.fleet.documents.rollouts import RollbackRequest, Selector
from edgepack.fleet.rollouts.rollback import show_rollback
from edgepack.wire.orders import BundleRef
from tests.unit.fleet.world import NEW, OLD, World, release_row, says

OLDEST = BundleRef(name="digits", version="0.9.0", release=0, digest="00" * 32)
LOST = replace(OLDEST, digest="dd" * 32)


def commit(world: World, device: str, *, previous: BundleRef | None = OLD) -> None:
    world.hear(device, says("COMMITTED", 1, active=NEW, previous=previous))


def look_ahead(
    world: World, what: str, *, withdrawn: Collection[BundleRef] = (), **changes: Any
) -> RollbackPreview:
    with world.store.reading() as session:
        request = RollbackRequest(what=what, **changes)
        return show_rollback(session, request, lambda bundle: bundle not in withdrawn)


@pytest.fixture
def rolled_out(world: World) -> World:
    """Return a world where `a` and `b` have committed the new release, and `c` is updating."""
    for device in ("a", "b", "c"):
        world.enroll(device)
        world.hear(device, says("IDLE", active=OLD))
    world.start()
    world.look()
    commit(world, "a")
    commit(world, "b")
    return world


def test_a_rollback_is_a_rollout_that_the_devices_confirm(rolled_out: World) -> None:
    world = rolled_out
    assert world.take_back("r1", waves="1,100%") == ["r2"]
    ended = world.view("r1")
    assert (ended.state, ended.because) == ("ABORTED", "taken back")
    assert {part.device: part.state for part in ended.assignments} == {
        "a": "RECALLED",
        "b": "RECALLED",
        "c": "WITHDRAWN",
    }
    view = world.view("r2")
    assert (view.bundle, view.takes_back, view.wave_count) == (OLD, NEW, 2)
    assert view.counts == {"OFFERED": 1, "WAITING": 1}
    first, second = (part.device for part in view.assignments)
    order = world.orders(first)[-1]
    assert (order.bundle, order.rollback, order.rollout) == (OLD, True, "r2")
    world.hear(first, says("COMMITTED", order.sequence, active=OLD, previous=NEW))
    order = world.orders(second)[-1]
    assert order.rollback
    world.hear(second, says("ROLLED_BACK", order.sequence, because="disk full"))
    assert world.view("r2").state == "PAUSED", "a rollback that devices refuse does not go on"


def test_who_joins_after_a_rollback_gets_the_release_before(world: World) -> None:
    world.enroll("a")
    world.start(OLD)
    world.look()
    world.hear("a", says("COMMITTED", 1, active=OLD))
    world.start(NEW)
    world.look()
    world.hear("a", says("COMMITTED", 2, active=NEW, previous=OLD))
    assert world.view("r2").state == "FINISHED"
    world.take_back("digits@2.0.0")
    assert world.view("r2").state == "ABORTED"
    world.enroll("late")
    assert [order.bundle for order in world.orders("late")] == [OLD]


def test_devices_that_ran_different_releases_before_go_back_to_their_own(
    rolled_out: World,
) -> None:
    world = rolled_out
    with world.store.transaction() as session:
        session.add(release_row(OLDEST))
    commit(world, "c", previous=OLDEST)
    assert [(part.to, part.examples) for part in look_ahead(world, "r1").parts] == [
        (OLD, ("a", "b")),
        (OLDEST, ("c",)),
    ]
    assert world.take_back("02020202") == ["r2", "r3"]
    assert [world.orders(device)[-1].bundle for device in "abc"] == [OLD, OLD, OLDEST]


def test_devices_that_cannot_go_back_stay_and_say_why(rolled_out: World) -> None:
    world = rolled_out
    world.hear("a", says("COMMITTED", 1, active=NEW, previous=LOST))
    world.hear("b", says("COMMITTED", 1, active=NEW))
    commit(world, "c")
    world.hear("c", says("IDLE", 0, active=OLD))
    found = look_ahead(world, "r1")
    assert [(part.examples, part.because) for part in found.parts] == [
        (("a",), "the fleet does not hold digits 0.9.0 (dddddddddddd), which it ran before"),
        (("b",), "it keeps no release to go back to"),
        (("c",), "digits 1.0.0 serves there by now"),
    ]
    with pytest.raises(FleetError) as refusal:
        world.take_back("r1")
    assert refusal.value.problem == found.refusal
    assert found.refusal.startswith("no device can go back from digits 2.0.0 (020202020202): ")
    assert world.view("r1").state == "FINISHED", "nothing was changed"


def test_devices_whose_release_before_was_withdrawn_stay_and_say_so(rolled_out: World) -> None:
    world = rolled_out
    with world.store.transaction() as session:
        session.add(release_row(OLDEST))
    commit(world, "c", previous=OLDEST)
    found = look_ahead(world, "r1", withdrawn={OLD})
    assert [(part.to, part.examples, part.because) for part in found.parts] == [
        (OLDEST, ("c",), ""),
        (None, ("a", "b"), f"digits 1.0.0 ({'01' * 6}), which it ran before, was withdrawn"),
    ]
    with pytest.raises(FleetError, match="which it ran before, was withdrawn"):
        world.take_back("r1", withdrawn={OLD, OLDEST})
    assert world.view("r1").state == "FINISHED", "nothing was changed"
    assert world.take_back("r1", withdrawn={OLD}) == ["r2"]
    assert [part.device for part in world.view("r2").assignments] == ["c"]


def test_a_release_is_taken_back_from_a_group_alone(world: World) -> None:
    for device, group in (("a", "g"), ("b", "h")):
        world.enroll(device, group)
        world.hear(device, says("COMMITTED", active=NEW, previous=OLD))
    found = look_ahead(world, "digits@2.0.0", selector=Selector(kind="group", group="h"))
    assert [part.examples for part in found.parts] == [("b",)]
    world.start(NEW, selector=Selector(kind="all"))
    with pytest.raises(FleetError, match="a rollout has its own devices"):
        look_ahead(world, "r1", selector=Selector(kind="all"))


def test_a_rollout_that_nobody_committed_is_only_ended(world: World) -> None:
    world.enroll("a")
    world.start()
    world.look()
    found = look_ahead(world, "r1")
    assert (found.ends, found.parts, found.refusal) == ("r1", (), "")
    assert world.take_back("r1") == []
    assert world.view("r1").counts == {"WITHDRAWN": 1}
    with pytest.raises(FleetError, match="no device can go back from digits"):
        world.take_back("r1")


@pytest.mark.parametrize("what", ["digits@9", "letters@2.0.0", "0202", "", "@", "%", "r9", "\x1b"])
def test_what_the_fleet_does_not_hold_is_refused(world: World, what: str) -> None:
    with pytest.raises(FleetError, match=r"there is no rollout r9|the fleet holds no release"):
        look_ahead(world, what)


def test_a_late_commit_finishes_a_rollout_that_its_silence_had_paused(world: World) -> None:
    world.enroll("a")
    world.enroll("b")
    world.start(soak_s=0.0, deadline_s=0.001)
    world.look()
    world.look()
    assert (world.view("r1").state, world.view("r1").counts) == ("PAUSED", {"SILENT": 2})
    world.hear("a", says("COMMITTED", 1, active=NEW))
    assert world.view("r1").state == "PAUSED", "b has not committed"
    world.hear("b", says("COMMITTED", 1, active=NEW))
    view = world.view("r1")
    assert (view.state, view.because) == (
        "FINISHED",
        "2 of 2 devices committed, 0 failed or stayed silent",
    )


def test_a_finished_rollout_counts_who_commits_late(world: World) -> None:
    world.enroll("a")
    world.enroll("b")
    world.start(soak_s=0.0, deadline_s=0.001, max_failed_share=1.0)
    world.look()
    world.look()
    assert world.view("r1").because == "0 of 2 devices committed, 2 failed or stayed silent"
    world.hear("a", says("COMMITTED", 1, active=NEW))
    assert world.view("r1").because == "1 of 2 devices committed, 1 failed or stayed silent"
    world.enroll("late")
    world.hear("late", says("COMMITTED", 1, active=NEW))
    assert world.view("r1").because == "2 of 3 devices committed, 1 failed or stayed silent"
