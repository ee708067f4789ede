"""The controller on a real database, without a broker: stored messages and answers."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import inventory, latency, records, unsent
from edgepack.fleet.database.schema import LatencyRow
from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.rollouts import execution, status
from edgepack.wire import topics
from edgepack.wire.changes import find_changes
from edgepack.wire.messages import encode
from edgepack.wire.reports import Changes
from edgepack.wire.telemetry import Event
from edgepack.wire.transfers import Need
from tests.simulators.world import make_facts
from tests.unit.fleet.world import NEW, OLD, World, says, telemetry_window


def test_a_rollout_offers_and_a_commit_finishes_it(world: World) -> None:
    world.enroll("a")
    name = world.start()
    world.look()
    (desired,) = world.orders("a")
    assert desired.bundle == NEW
    assert desired.sequence == 1
    assert desired.rollout == name
    world.hear("a", says("DOWNLOADING", 1))
    assert world.view(name).counts == {"WORKING": 1}
    world.hear("a", says("COMMITTED", 1, active=NEW))
    assert world.view(name).state == "FINISHED"


def test_a_restarted_controller_goes_on_from_the_database(world: World) -> None:
    world.enroll("a")
    name = world.start()
    world.look()
    world.store.close()
    again = world.reopened()
    again.inbox.connected()
    again.controller.turn()
    assert [d.sequence for d in again.told("a")] == [1], "what the broker may have forgotten"
    again.hear("a", says("COMMITTED", 1, active=NEW))
    assert again.view(name).state == "FINISHED"
    again.store.close()


def test_a_device_that_has_just_come_is_answered_once_though_nothing_is_wanted_of_it(
    world: World,
) -> None:
    world.enroll("a")
    for _ in range(3):
        world.hear("a", says("IDLE"))
    assert [(d.sequence, d.models) for d in world.told("a")] == [(0, {})]
    world.hear("a", says("IDLE", boot="b2"))
    assert len(world.told("a")) == 2, "another process does not know"
    world.hear("stranger", says("IDLE"))
    assert world.told("stranger") == []


def test_an_order_asks_for_inferences_and_leaves_time_for_them_but_the_way_back_does_not(
    world: World,
) -> None:
    world.enroll("a")
    world.hear("a", says("IDLE", active=OLD))
    name = world.start(min_inferences=100, deadline_s=600.0)
    world.look()
    (order,) = world.orders("a")
    assert (order.min_inferences, order.deadline_s) == (100, 540.0)
    assert world.view(name).settings.min_inferences == 100
    with world.store.transaction() as session:
        publications = execution.abort(session, execution.find(session, name), because="x", now=2.0)
        unsent.add(session, publications)
    world.look()
    back = world.orders("a")[-1]
    assert (back.bundle, back.min_inferences) == (OLD, 0)


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
    world.hear("a", says("IDLE", boot="b2"))
    assert len(world.told("a")) == 2, "it was told a moment ago"
    world.hear("a", says("DOWNLOADING", 1, boot="b2"))
    assert len(world.told("a")) == 2, "nothing differs"


def test_a_report_that_was_overtaken_changes_nothing(world: World) -> None:
    world.enroll("a")
    name = world.start()
    world.look()
    earlier = world.payload("a", says("DOWNLOADING", 1))
    world.hear("a", says("COMMITTED", 1, active=NEW))
    world.inbox.receive(topics.up("t", "a", "reported"), earlier)
    world.controller.turn()
    assert world.inbox.quotas.dropped("a") == {"reported replayed": 1}
    with world.store.transaction() as session:
        assert inventory.list_devices(session)[0].models[0].state == "COMMITTED"
    assert world.view(name).counts == {"COMMITTED": 1}


def test_the_last_will_of_an_older_process_does_not_mark_a_newer_one_offline(world: World) -> None:
    world.enroll("a")
    world.hear("a", says("IDLE", boot="b2"))
    world.hear("a", says("IDLE", boot="b1", online=False))
    with world.store.transaction() as session:
        assert inventory.list_devices(session)[0].online
    world.hear("a", says("IDLE", boot="b2", online=False))
    with world.store.transaction() as session:
        assert not inventory.list_devices(session)[0].online


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
        publications = execution.abort(session, execution.find(session, name), because="x", now=2.0)
        unsent.add(session, publications)
    world.look()
    last = world.orders("a")[-1]
    assert (last.bundle, last.rollback, last.sequence) == (OLD, True, 2)
    assert world.told("b")[-1].models == {}, "nothing is wanted of b any more"
    world.hear("b", says("COMMITTED", 1, active=NEW))
    assert world.view(name).counts == {"WITHDRAWN": 2}, "what was withdrawn stays so"


def test_a_late_device_gets_the_newest_rollout_that_was_not_aborted(world: World) -> None:
    world.enroll("a")
    first = world.start(OLD)
    world.look()
    world.hear("a", says("COMMITTED", 1, active=OLD))
    second = world.start(NEW)
    with world.store.transaction() as session:
        execution.abort(session, execution.find(session, second), because="x", now=2.0)
    world.enroll("late")
    assert [d.rollout for d in world.orders("late")] == [first]
    world.enroll("stranger", group="other")
    assert world.told("stranger") == []


def test_a_late_device_joins_the_last_wave_of_a_running_rollout(world: World) -> None:
    world.enroll("a")
    name = world.start()
    world.look()
    world.enroll("late")
    world.look()
    assert [d.rollout for d in world.orders("late")] == [name]
    world.hear("a", says("COMMITTED", 1, active=NEW))
    assert world.view(name).state == "RUNNING", "it waits for the late one"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"digest": "77" * 32}, "no release has digest 7777"),
        ({"selector": Selector(kind="group", group="h")}, "no device is enrolled in group h"),
        ({"selector": Selector(kind="devices", devices=("x",))}, "not enrolled: x"),
        ({"soak_s": 60.0, "deadline_s": 60.0}, "no device can soak 60 s within 60 s"),
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


def test_a_window_that_comes_twice_counts_once_and_histograms_are_merged(world: World) -> None:
    for device in ("a", "b"):
        world.enroll(device)
    name = world.start()
    for device in ("a", "b"):
        world.hear_twice(device, telemetry_window(), "telemetry")
    (row,) = world.view(name).latency
    assert (row.devices, row.inferences, row.is_simulator) == (2, 6, False)
    assert row.p50_ms == pytest.approx(2.0, rel=0.03)


def test_a_simulator_s_times_are_marked_and_kept_apart(world: World) -> None:
    providers = {}
    for device, is_simulator in (("a", True), ("b", False)):
        world.enroll(device)
        facts = make_facts()
        providers[device] = tuple(replace(p, is_simulator=is_simulator) for p in facts.providers)
        facts = replace(facts, providers=providers[device])
        world.hear(device, replace(says("IDLE"), facts=facts))
    name = world.start()
    for device, (provider, *_) in providers.items():
        world.hear(device, replace(telemetry_window(), provider=provider.name), "telemetry")
    found = world.view(name).latency
    assert [(row.is_simulator, row.devices) for row in found] == [(False, 1), (True, 1)]


def test_latency_is_of_the_rollouts_own_devices(world: World) -> None:
    for device, group in (("a", "g"), ("b", "h")):
        world.enroll(device, group)
    name = world.start()
    for device in ("a", "b"):
        world.hear(device, telemetry_window(), "telemetry")
    (row,) = world.view(name).latency
    assert row.devices == 1


def test_latency_takes_as_many_rows_for_many_windows_as_for_one(world: World) -> None:
    for device in ("a", "b", "c"):
        world.enroll(device)
    name = world.start()
    now = time.time()
    windows = [replace(telemetry_window(), window_start=now - 3600 - n) for n in range(40)]
    for window in windows:
        for device in ("a", "b", "c"):
            world.receive(device, window, "telemetry")
    world.controller.turn()
    (row,) = world.view(name).latency
    assert (row.devices, row.inferences) == (3, 40 * 3 * 3)
    with world.store.reading() as session:
        lengths = Counter(session.scalars(select(LatencyRow.length_s)))
    assert lengths.keys() == latency.LENGTHS_S.keys()
    assert max(lengths.values()) <= 2, "40 s are in two minutes at most"


def test_a_clock_that_is_wrong_does_not_hide_what_was_measured(world: World) -> None:
    world.enroll("a")
    name = world.start()
    for start in (0.0, 2.0**33):
        world.hear("a", replace(telemetry_window(), window_start=start), "telemetry")
    with world.store.transaction() as session:
        latency.forget_old(session, time.time() + 60)
    (row,) = world.view(name).latency
    assert row.inferences == 6
    with world.store.transaction() as session:
        latency.forget_old(session, time.time() + max(latency.LENGTHS_S.values()) + 86400)
    assert world.view(name).latency == ()


def test_a_device_that_invents_variants_takes_no_more_rows_than_its_share(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency, "MAX_SOURCES", 2)
    world.enroll("a")
    name = world.start()
    for variant in ("cpu", "v1", "v2", "v3", "cpu"):
        window = replace(telemetry_window(), variant=variant, window_start=time.time())
        world.hear("a", window, "telemetry")
    assert {row.variant: row.inferences for row in world.view(name).latency} == {"cpu": 6, "v1": 3}
    assert world.inbox.counters == {"telemetry": 5}


def test_a_window_that_claims_more_than_can_be_is_dropped(world: World) -> None:
    world.enroll("a")
    name = world.start()
    window = telemetry_window()
    for absurd in (
        replace(window, failures=2**53),
        replace(window, latency=replace(window.latency, sum_ms=1e308)),
    ):
        world.hear("a", absurd, "telemetry")
    assert world.inbox.counters == {"malformed": 2}
    assert world.view(name).latency == ()


def test_text_that_no_database_holds_is_kept_without_it(world: World) -> None:
    world.enroll("a")
    world.hear("a", Event(at=1.0, kind="warning", bundle="x", because="a\0b"), "event")
    with world.store.reading() as session:
        (event,) = records.events_after(session, 0, 10)
    assert event.because == "a\ufffdb"
    assert world.inbox.counters == {"event": 1}


def test_numbers_beyond_32_bits_are_kept(world: World) -> None:
    world.enroll("a")
    world.hear("a", says("IDLE", 2**32))
    name = world.start()
    world.look()
    assert world.told("a")[-1].sequence == 2**32 + 1
    assert world.view(name).counts == {"OFFERED": 1}


def test_needs_go_to_the_depot_and_an_unknown_release_is_counted(world: World) -> None:
    world.enroll("a")
    world.hear("a", Need(digest="x" * 5000, files=()), "need")
    assert world.inbox.counters["need"] == 1


def test_what_is_old_is_forgotten(world: World) -> None:
    def count(session: Session) -> int:
        return len(records.events_after(session, 0, 10))

    with world.store.transaction() as session:
        event = Event(at=1.0, kind="warning", bundle="x")
        records.add_device_events(session, [("a", event)], 1.0)
        assert count(session) == 1
        records.forget_old(session, records.KEEP_S)
        assert count(session) == 1
        records.forget_old(session, records.KEEP_S + 2)
        assert count(session) == 0


def test_a_device_that_changes_its_group_stays_in_the_rollout_that_it_is_in(world: World) -> None:
    world.enroll("a")
    world.enroll("b", group="h")
    first = world.start()
    second = world.start(selector=Selector(kind="group", group="h"))
    world.look()
    world.change("a", group="h")
    world.look()
    assert [d.rollout for d in world.orders("a")] == [first]
    assert len(world.view(second).assignments) == 1


def test_a_silent_device_that_speaks_up_later_is_believed(world: World) -> None:
    world.enroll("a")
    name = world.start(soak_s=0.0, deadline_s=0.001)
    world.look()
    world.hear("a", says("DOWNLOADING", 0))
    world.look()
    assert world.view(name).counts == {"SILENT": 1}
    world.hear("a", says("DOWNLOADING", 1))
    assert world.view(name).counts == {"SILENT": 1}, "not yet decisive"
    world.hear("a", says("COMMITTED", 1, active=NEW))
    assert world.view(name).counts == {"COMMITTED": 1}


def test_a_fleet_at_rest_looks_at_rollouts_now_and_then_and_at_once_when_it_is_woken(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, idle_step_s=1000.0)
    world.enroll("a")
    world.start()
    world.hear("a", says("IDLE"))
    assert world.orders("a") == []
    world.look()
    assert len(world.orders("a")) == 1
    world.store.close()


def test_changes_apply_to_the_last_report_and_a_gap_is_answered_with_a_session(
    world: World,
) -> None:
    world.enroll("a")
    first, second = says("SOAKING", 1, active=OLD), says("COMMITTED", 2, active=NEW)
    world.hear("a", first)
    beat = find_changes(first, replace(first, at=first.at + 600.0))
    assert (beat.changes, beat.models) == ({}, {})
    assert len(encode(beat)) < 100
    world.hear("a", beat)
    assert world.reported("a") == replace(first, at=first.at + 600.0)
    changed = find_changes(first, second)
    assert set(changed.changes) == {"sequence"}
    assert "probes" not in str(changed.models)
    world.hear("a", changed)
    assert world.reported("a") == second
    world.sent.clear()
    world.payload("a", second)  # A report that the broker loses.
    for _ in range(2):
        world.hear("a", find_changes(second, first))
        assert world.reported("a") == second, "no changes of an unknown report"
        assert [topic for topic, _ in world.sent] == [topics.session("t", "a")]
        world.sent.clear()
    world.hear("a", first)
    world.hear("a", find_changes(first, second))
    assert world.reported("a") == second


def test_changes_that_build_on_a_malformed_report_are_refused(world: World) -> None:
    world.enroll("a")
    first = says("COMMITTED", 1, active=OLD)
    world.hear("a", first)
    world.hear("a", Changes(at=1.0, changes={"sequence": msgspec.Raw(b'"x"')}))
    world.hear("a", find_changes(first, says("COMMITTED", 2, active=NEW)))
    assert world.reported("a") == first
    assert world.inbox.counters["after_a_lost_report"] == 1
    world.hear("a", Changes(at=1.0, changes={"online": msgspec.Raw(b"false")}))
    assert world.reported("a") == first
