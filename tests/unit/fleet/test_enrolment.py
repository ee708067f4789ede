"""Enrolment, moves, labels and removal of devices; unused releases are deleted."""

from typing import Any

import pytest
from msgspec.structs import replace

from edgepack.errors import FleetError
from edgepack.fleet.database import devices, enrolment, inventory, records, unsent
from edgepack.fleet.documents.devices import DeviceFilter
from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.releases.find import find_release
from edgepack.fleet.releases.publish import check_identity
from edgepack.fleet.rollouts import execution
from edgepack.fleet.rollouts.release_use import delete_release
from edgepack.wire import topics
from edgepack.wire.reports import Trusted
from tests.simulators.world import make_facts
from tests.unit.fleet.world import NEW, OLD, World, says

BERLIN = Selector(kind="where", where="site=berlin")


def remove(world: World, *names: str) -> None:
    with world.store.transaction() as session:
        rows = devices.find_devices(session, names)
        unsent.add(session, enrolment.remove(session, rows, 3.0))
    world.look()


def delete(world: World, words: str) -> None:
    with world.store.transaction() as session:
        delete_release(session, find_release(session, words), 3.0)


def named(world: World, **filters: Any) -> list[str]:
    with world.store.reading() as session:
        return [view.device for view in inventory.list_devices(session, DeviceFilter(**filters))]


def test_a_known_id_is_enrolled_again_only_to_replace_it(world: World) -> None:
    world.enroll("a")
    with pytest.raises(FleetError) as refusal:
        world.enroll("a", group="h")
    assert str(refusal.value).splitlines() == [
        "device a is enrolled already, in group g",
        "  found in: edgepack fleet devices",
        "  try: edgepack fleet devices move a --group h; "
        "or --replace, which ends the credentials that it has",
    ]
    with world.store.transaction() as session:
        enrolment.enroll(session, device="a", group="h", replace=True, now=2.0)
    assert named(world, group="h") == ["a"]


def test_a_removed_device_is_heard_no_more_and_nothing_waits_for_it(world: World) -> None:
    world.enroll("a")
    world.enroll("b")
    name = world.start()
    world.look()
    world.hear("b", says("COMMITTED", 1, active=NEW))
    remove(world, "a")
    assert world.published[-1] == (topics.desired("t", "a"), b"")
    view = world.view(name)
    assert (view.state, view.counts) == ("FINISHED", {"COMMITTED": 1})
    world.hear("a", says("COMMITTED", 1, active=NEW))
    assert world.inbox.counters["not_enrolled"] == 1
    assert named(world) == ["b"]
    with world.store.reading() as session:
        events = records.events_after(session, 0, 100)
    assert ("a", "removed by a person") in [(event.device, event.because) for event in events]


def test_a_removed_device_may_be_enrolled_anew(world: World) -> None:
    world.enroll("a")
    world.start()
    world.look()
    remove(world, "a")
    world.enroll("a")
    assert [order.sequence for order in world.orders("a")] == [1, 1]


def test_devices_are_selected_by_labels_and_by_what_they_report(world: World) -> None:
    for device, soc in (("a", "QCS6490"), ("b", "QCS6490"), ("c", "RK3588")):
        world.enroll(device)
        facts = replace(make_facts(), soc=soc)
        world.hear(device, replace(says("IDLE"), facts=facts))
        world.change(device, labels={"site": "paris" if device == "b" else "berlin"})
    world.enroll("silent")
    assert named(world, where="soc=QCS6490 and site=berlin") == ["a"]
    assert named(world, where="online=no or site!=berlin") == ["b", "silent"]
    world.change("a", labels={"site": "", "floor": "2"})
    assert named(world, where="site=berlin") == ["c"]
    with pytest.raises(FleetError) as refusal:
        named(world, where="sight=berlin")
    assert "no device has a label 'sight'" in refusal.value.problem
    assert "labels: floor, site; facts: agent, arch" in (refusal.value.found_in or "")


def test_a_rollout_for_an_expression_has_who_it_means_and_who_comes_to_be_meant(
    world: World,
) -> None:
    world.enroll("a")
    world.change("a", labels={"site": "berlin"})
    world.enroll("b")
    name = world.start(selector=BERLIN)
    assert [part.device for part in world.view(name).assignments] == ["a"]
    assert world.view(name).selector == "devices where site=berlin"
    world.change("b", labels={"site": "berlin"})
    assert [part.device for part in world.view(name).assignments] == ["a", "b"]
    with pytest.raises(FleetError, match="there are no devices where site=berlin and online=yes"):
        world.start(OLD, selector=replace(BERLIN, where="site=berlin and online=yes"))


def test_a_rollout_for_facts_takes_a_new_device_in_once_it_reports_them(world: World) -> None:
    soc = Selector(kind="where", where="soc=QCS6490")
    facts = replace(make_facts(), soc="QCS6490")
    world.enroll("a")
    world.hear("a", replace(says("IDLE"), facts=facts))
    name = world.start(selector=soc)
    world.enroll("late")
    assert len(world.view(name).assignments) == 1
    world.hear("late", replace(says("IDLE"), facts=facts))
    assert len(world.view(name).assignments) == 2


def test_a_moved_device_gets_what_its_new_group_got(world: World) -> None:
    world.enroll("a")
    world.start()
    world.look()
    world.hear("a", says("COMMITTED", 1, active=NEW))
    world.enroll("b", group="h")
    assert world.orders("b") == []
    world.change("b", group="g")
    assert [order.bundle for order in world.orders("b")] == [NEW]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("2x", "y", "'2x' is not a key of a label"),
        ("", "y", "'' is not a key of a label"),
        ("a b", "y", "'a b' is not a key of a label"),
        ("soc", "y", "'soc' is not a label: that is what the fleet knows of a device itself"),
        ("not", "y", "'not' is not a label"),
        ("site", "x" * 65, "a label has at most 64 characters"),
        ("site", "\x1b[2J", "a label has at most 64 characters to look at"),
        ("site", "a'b", "and no quotes"),
    ],
)
def test_what_can_be_no_label_is_refused(world: World, key: str, value: str, problem: str) -> None:
    world.enroll("a")
    with pytest.raises(FleetError) as refusal:
        world.change("a", labels={key: value})
    assert problem in refusal.value.problem


def test_a_device_has_a_bounded_number_of_labels(world: World) -> None:
    world.enroll("a")
    world.change("a", labels={f"k{number}": "v" for number in range(32)})
    with pytest.raises(FleetError, match="a device has at most 32 labels, a would have 33"):
        world.change("a", labels={"one-more": "v"})
    world.change("a", labels={"k0": "", "one-more": "v"})


def test_groups_are_listed_with_their_devices(world: World) -> None:
    for device, group in (("a", "cams"), ("b", "cams"), ("c", "doors")):
        world.enroll(device, group)
    world.hear("a", says("IDLE"))
    with world.store.reading() as session:
        found = inventory.list_groups(session)
    assert [(one.group, one.devices, one.online) for one in found] == [
        ("cams", 2, 1),
        ("doors", 1, 0),
    ]


def test_a_device_is_shown_with_its_facts_and_rollouts(world: World) -> None:
    world.enroll("a")
    world.hear("a", replace(says("IDLE"), facts=make_facts()))
    world.start()
    world.look()
    with world.store.reading() as session:
        found = inventory.show_device(session, "a")
    assert found.facts == make_facts()
    assert [(part.rollout, part.bundle, part.state) for part in found.rollouts] == [
        ("r1", NEW, "OFFERED")
    ]


@pytest.mark.parametrize(
    ("state", "active", "previous", "reason"),
    [
        ("IDLE", OLD, None, "1 device (a)"),
        ("IDLE", NEW, OLD, "1 device (a)"),
    ],
)
def test_a_release_that_a_device_holds_is_not_deleted(
    world: World, state: str, active: Any, previous: Any, reason: str
) -> None:
    world.enroll("a")
    world.hear("a", says(state, active=active, previous=previous))
    with pytest.raises(FleetError) as refusal:
        delete(world, "digits@1.0.0")
    assert refusal.value.problem == "digits 1.0.0 (010101010101) is in use"
    assert refusal.value.found_in == reason


def test_a_release_that_a_rollout_needs_is_not_deleted(world: World) -> None:
    world.enroll("a")
    name = world.start(OLD)
    with pytest.raises(FleetError) as refusal:
        delete(world, "01010101")
    assert refusal.value.found_in == "rollout r1 is RUNNING"
    world.look()
    world.hear("a", says("COMMITTED", 1, active=OLD))
    remove(world, "a")
    with pytest.raises(FleetError) as refusal:
        delete(world, "01010101")
    assert refusal.value.found_in == "who joins group g gets it by rollout r1"
    with world.store.transaction() as session:
        execution.abort(session, execution.find(session, name), because="x", now=2.0)
    delete(world, "01010101")


def test_a_deleted_release_is_gone_but_its_name_stays_taken(world: World) -> None:
    delete(world, "digits@1.0.0")
    with pytest.raises(FleetError, match=r"holds no release 'digits@1\.0\.0'"):
        delete(world, "digits@1.0.0")
    world.enroll("a")
    with pytest.raises(FleetError, match="no release has digest 0101"):
        world.start(OLD)
    with (
        world.store.reading() as session,
        pytest.raises(FleetError, match=r"another content of digits 1\.0\.0"),
    ):
        check_identity(session, replace(OLD, digest="77" * 32))


def test_a_device_that_obeys_unsigned_orders_is_shown(world: World) -> None:
    world.enroll("a")

    def obeys_unsigned() -> bool:
        with world.store.reading() as session:
            return inventory.show_device(session, "a").obeys_unsigned

    assert not obeys_unsigned(), "it has said nothing yet"
    world.hear("a", replace(says("IDLE"), facts=make_facts()))
    assert obeys_unsigned()
    rooted = replace(says("IDLE"), facts=make_facts(), trust=Trusted(root=1))
    world.hear("a", rooted)
    assert not obeys_unsigned()
