"""Conditions of a rollout: approval, its start, windows, room at a site; retry and supersede."""

import tempfile
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from edgepack.errors import FleetError
from edgepack.fleet.database import audit
from edgepack.fleet.database.audit import Wanted
from edgepack.fleet.database.schema import AssignmentRow, ReleaseRow
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from edgepack.fleet.rollouts import execution, membership, steps
from edgepack.fleet.rollouts.retry import retry
from edgepack.wire.orders import BundleRef
from tests.simulators.world import make_facts
from tests.unit.fleet.world import NEW, OLD, World, release_row, says

NEWER = BundleRef(name=NEW.name, version="3.0.0", release=3, digest="03" * 32)


def commit(world: World, device: str, bundle: BundleRef = NEW) -> None:
    sequence = world.orders(device)[-1].sequence
    world.hear(device, says("COMMITTED", sequence, active=bundle))


def fail(world: World, device: str) -> None:
    sequence = world.orders(device)[-1].sequence
    world.hear(device, says("ROLLED_BACK", sequence, because="too hot"))


def offered(world: World, devices: str) -> set[str]:
    return {device for device in devices if world.orders(device)}


def tell(world: World, act: Any, name: str) -> None:
    with world.store.transaction("token alice") as session:
        act(session, execution.find(session, name), time.time())
    world.look()


def test_each_wave_after_the_first_waits_for_a_person(world: World) -> None:
    for device in "abc":
        world.enroll(device)
    name = world.start(waves="1,2,100%", approve_waves=True)
    world.look()
    (first,) = offered(world, "abc")
    commit(world, first)
    assert len(offered(world, "abc")) == 1
    assert world.view(name).waits_for == f"approval of wave 2: edgepack rollout approve {name}"
    tell(world, execution.approve, name)
    second = offered(world, "abc") - {first}
    assert len(second) == 1
    assert world.view(name).waits_for == ""
    commit(world, second.pop())
    assert len(offered(world, "abc")) == 2
    tell(world, execution.approve, name)
    commit(world, (offered(world, "abc") - {first}).pop())
    with world.store.reading() as session:
        acts = audit.entries(session, Wanted(rollout=name, action="rollout.approve"), 10)
    assert [(act.actor, act.numbers) for act in acts] == [
        ("token alice", {"wave": 3}),
        ("token alice", {"wave": 2}),
    ]


def test_what_waits_for_nobody_cannot_be_approved(world: World) -> None:
    for device in "ab":
        world.enroll(device)
    name = world.start(waves="1,100%")
    with pytest.raises(FleetError, match=f"rollout {name} waits for nobody's approval"):
        tell(world, execution.approve, name)


def test_a_rollout_begins_when_it_is_time(world: World) -> None:
    world.enroll("a")
    start = time.time() + 3600
    name = world.start(not_before=start)
    world.look()
    assert not world.orders("a")
    assert world.view(name).waits_for.startswith("its start, 20")
    with world.store.transaction() as session:
        publications = steps.step(session, start + 1, lambda _: True).publications
    assert [publication.device for publication in publications] == ["a"]


def test_devices_are_offered_it_while_the_window_is_open_where_they_are(world: World) -> None:
    for device, zone in (("a", "Asia/Tokyo"), ("b", "America/New_York"), ("c", "")):
        world.enroll(device)
        world.change(device, labels={"timezone": zone} if zone else {})
    name = world.start(window="02:00-03:00")
    moment = datetime(2026, 3, 2, 2, 30, tzinfo=UTC)
    seen: dict[str, int] = {}
    for hour in range(24):
        with world.store.transaction() as session:
            now = (moment + timedelta(hours=hour)).timestamp()
            publications = steps.step(session, now, lambda _: True).publications
        seen |= {publication.device: hour for publication in publications}
    assert seen == {"c": 0, "b": 5, "a": 15}
    assert world.view(name).waits_for == ""


def test_a_label_that_names_no_zone_is_refused_and_said(world: World) -> None:
    world.enroll("a")
    world.change("a", labels={"timezone": "Mars/Base"})
    with pytest.raises(FleetError, match="'Mars/Base' is not a time zone"):
        world.start(window="02:00-03:00")
    assert world.start()


@settings(max_examples=8)
@given(
    sites=st.lists(st.sampled_from(["", "berlin", "rome", "oslo"]), min_size=3, max_size=12),
    at_once=st.integers(1, 3),
    waves=st.sampled_from(["100%", "2,100%", "each site,100%", "site=rome,50%,100%"]),
    data=st.data(),
)
def test_never_more_of_a_site_at_once_than_the_plan_says_and_nobody_is_left_out(
    sites: list[str], at_once: int, waves: str, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        by_site = {f"d{number}": site for number, site in enumerate(sites)}
        for device, site in {**by_site, "extra": "rome"}.items():
            world.enroll(device)
            world.change(device, labels={"site": site} if site else {})
        by_site["extra"] = "rome"
        name = world.start(waves=waves, max_per_site=at_once, max_failed_share=1.0)
        for _ in range(200):
            world.look()
            busy: dict[str, list[str]] = defaultdict(list)
            with world.store.reading() as session:
                for row in session.scalars(select(AssignmentRow)):
                    if row.state in ("OFFERED", "WORKING"):
                        busy[by_site[row.device]].append(row.device)
            assert all(len(names) <= at_once for site, names in busy.items() if site), busy
            if world.view(name).state == "FINISHED":
                break
            under_way = [device for names in busy.values() for device in names]
            act = data.draw(st.sampled_from([commit, fail]))
            act(world, data.draw(st.sampled_from(sorted(under_way))))
        view = world.view(name)
        assert view.state == "FINISHED"
        assert sum(view.counts.values()) == len(by_site) == Counter(view.counts).total()
        assert set(view.counts) <= {"COMMITTED", "FAILED"}
        world.store.close()


def test_what_waits_for_room_at_its_site_says_so(world: World) -> None:
    for device in "abc":
        world.enroll(device)
        world.change(device, labels={"site": "berlin"})
    name = world.start(max_per_site=2)
    world.look()
    assert len(offered(world, "abc")) == 2
    assert world.view(name).waits_for == "1 device: room at their site, 2 at once"


def test_waves_can_be_of_a_selector_and_of_each_site(world: World) -> None:
    for device, site in (("a", "rome"), ("b", "berlin"), ("c", "rome"), ("d", "")):
        world.enroll(device)
        world.change(device, labels={"site": site} if site else {})
    one = world.view(world.start(waves="site=rome,100%"))
    assert {part.device: part.wave for part in one.assignments} == {"a": 1, "b": 2, "c": 1, "d": 2}
    with world.store.transaction() as session:
        execution.abort(session, execution.find(session, one.rollout), because="x", now=2.0)
    each = world.view(world.start(waves="each site,100%"))
    assert {part.device: part.wave for part in each.assignments} == {"a": 2, "b": 1, "c": 2, "d": 3}
    with pytest.raises(FleetError, match="no device has a label 'room'"):
        world.start(waves="room=1,100%")


def test_the_failed_and_the_silent_try_again_and_it_goes_on(world: World) -> None:
    for device in "abc":
        world.enroll(device)
    name = world.start(max_failed_share=1.0)
    world.look()
    commit(world, "a")
    fail(world, "b")
    fail(world, "c")
    assert world.view(name).state == "FINISHED"
    tell(world, retry, name)
    assert world.view(name).state == "RUNNING"
    assert [len(world.orders(device)) for device in "abc"] == [1, 2, 2]
    commit(world, "b")
    commit(world, "c")
    view = world.view(name)
    assert (view.state, view.counts) == ("FINISHED", {"COMMITTED": 3})
    with pytest.raises(FleetError, match="no device of rollout r1 failed or stayed silent"):
        tell(world, retry, name)


def test_a_device_that_is_in_another_rollout_by_now_does_not_try_the_older_again(
    world: World,
) -> None:
    add_newer(world)
    world.enroll("a")
    name = world.start(max_failed_share=1.0)
    world.look()
    fail(world, "a")
    world.start(NEWER)
    with pytest.raises(FleetError, match="is free to try again"):
        tell(world, retry, name)


def test_a_device_that_joins_a_finished_rollout_waits_for_its_window_too(world: World) -> None:
    world.enroll("a")
    world.change("a", labels={"timezone": "Asia/Tokyo"})
    name = world.start(window="00:00-24:00")
    world.look()
    commit(world, "a")
    assert world.view(name).state == "FINISHED"
    world.enroll("b")
    view = world.view(name)
    assert (view.state, view.because) == ("RUNNING", "b joined, and waits for its turn")
    world.look()
    commit(world, "b")
    assert world.view(name).state == "FINISHED"


def test_a_device_of_a_class_that_is_held_back_gets_nothing_when_it_joins(world: World) -> None:
    world.enroll("a")
    world.hear("a", msgspec.structs.replace(says("IDLE"), facts=make_facts()))
    name = world.start(split_by="hardware", on_breach="abort")
    world.look()
    fail(world, "a")
    assert set(world.view(name).held) == {"example"}
    world.enroll("b", group="other")
    world.hear("b", msgspec.structs.replace(says("IDLE"), facts=make_facts()))
    world.change("b", group="g")
    world.look()
    assert not world.orders("b")
    assert world.view(name).counts == {"FAILED": 1}


def add_newer(world: World) -> None:
    with world.store.transaction() as session:
        if session.get(ReleaseRow, NEWER.digest) is None:
            session.add(release_row(NEWER))


def test_a_newer_rollout_takes_devices_over_where_that_is_asked_for(world: World) -> None:
    add_newer(world)
    for device in "abc":
        world.enroll(device)
    old = world.start(waves="1,100%")
    world.look()
    (first,) = offered(world, "abc")
    with pytest.raises(FleetError, match="which is RUNNING") as refusal:
        world.start(NEWER)
    assert refusal.value.remedy == "--supersede takes them over; or wait: edgepack rollout watch r1"
    new = world.start(NEWER, supersede=True)
    view = world.view(old)
    assert (view.state, view.counts) == ("ABORTED", {"WITHDRAWN": 3})
    assert view.because == f"superseded by {new}: 3 devices taken over by {new}"
    world.look()
    assert {world.orders(device)[-1].bundle for device in "abc"} == {NEWER}
    world.hear(first, says("COMMITTED", 1, active=NEW))
    assert world.view(old).counts == {"WITHDRAWN": 3}, "it does not count what it gave away"
    for device in "abc":
        commit(world, device, NEWER)
    assert world.view(new).counts == {"COMMITTED": 3}


def test_an_older_rollout_goes_on_for_devices_that_are_not_taken_over(world: World) -> None:
    add_newer(world)
    for device in "ab":
        world.enroll(device)
    old = world.start()
    one = Selector(kind="devices", devices=("a",))
    new = world.start(NEWER, supersede=True, selector=one)
    view = world.view(old)
    assert (view.state, view.counts) == ("RUNNING", {"WITHDRAWN": 1, "WAITING": 1})
    assert view.because == f"1 device taken over by {new}"


def test_an_expression_that_means_every_device_is_pointed_out(world: World) -> None:
    for device in "ab":
        world.enroll(device)
    with world.store.reading() as session:
        found = membership.show_preview(
            session, OLD, Selector(kind="where", where="not group=h"), RolloutSettings()
        )
        named = membership.show_preview(session, OLD, Selector(kind="all"), RolloutSettings())
    assert found.note == "these are all 2 devices of the fleet"
    assert named.note == ""


def test_an_older_rollout_that_ends_or_is_retried_leaves_devices_of_a_newer_one_alone(
    world: World,
) -> None:
    add_newer(world)
    for device in "ab":
        world.enroll(device)
    old = world.start(soak_s=0.0, deadline_s=0.001, max_failed_share=1.0)
    world.look()
    world.look()  # past the deadline: both are silent
    world.start(NEWER, selector=Selector(kind="devices", devices=("a",)))
    world.look()
    commit(world, "a", NEWER)
    assert world.view(old).counts == {"SILENT": 2}
    with world.store.transaction() as session:
        row = execution.find(session, old)
        retry(session, row, 3.0)
    assert world.view(old).counts == {"SILENT": 1, "WAITING": 1}, "a runs a newer release"
    with world.store.transaction() as session:
        row = execution.find(session, old)
        execution.abort(session, row, because="test", now=4.0)
    assert world.orders("a")[-1].bundle == NEWER
    assert world.view(old).counts == {"WITHDRAWN": 2}
