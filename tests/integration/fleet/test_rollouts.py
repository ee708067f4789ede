"""Rollouts from end to end, on each database and on each broker that runs here."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from edgepack.errors import FleetError
from edgepack.fleet.documents.rollouts import RolloutSettings
from tests.integration.fleet.conftest import MakeBundle, Serve, Simulate, on_all


@on_all
def test_two_waves_complete_and_every_device_commits(
    begin: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = begin()
    simulation(fleet, count=6)
    name = fleet.roll_out(make_bundle(), waves="2,100%")
    view = fleet.wait_for(name, "FINISHED")
    assert view.counts == {"COMMITTED": 6}
    assert view.because == "6 of 6 devices committed, 0 failed or stayed silent"
    first = [part.decided_at or 0.0 for part in view.assignments if part.wave == 1]
    second = [part.offered_at or 0.0 for part in view.assignments if part.wave == 2]
    assert len(first) == 2
    assert 0.0 < max(first) <= min(second), "the second wave waits for the first"


@on_all
def test_failing_devices_pause_it_and_the_second_wave_never_begins(
    begin: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = begin()
    simulation(fleet, count=5, fail_rate=1.0)
    name = fleet.roll_out(make_bundle(), waves="2,100%")
    view = fleet.wait_for(name, "PAUSED")
    assert view.counts == {"FAILED": 2, "WAITING": 3}
    assert "2 of 2 decided devices of wave 1 failed or stayed silent (100%)" in view.because
    assert "golden outputs differ" in view.assignments[0].because


def test_resume_accepts_the_failures_seen_and_goes_on(
    begin: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = begin()
    simulation(fleet, count=3, fail_rate=1.0)
    name = fleet.roll_out(make_bundle(), waves="1,100%", min_sample=2)
    fleet.wait_for(name, "PAUSED")
    assert fleet.client.resume_rollout(name).state == "RUNNING"
    view = fleet.wait_for(name, "PAUSED")
    assert view.wave == 2
    assert view.counts == {"FAILED": 3}
    fleet.client.resume_rollout(name)
    assert fleet.wait_for(name, "FINISHED").because.startswith("0 of 3 devices committed, 3 failed")


def test_a_breach_can_abort_and_waiting_devices_are_withdrawn(
    begin: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = begin()
    simulation(fleet, count=3, fail_rate=1.0)
    name = fleet.roll_out(make_bundle(), on_breach="abort")
    assert fleet.wait_for(name, "ABORTED").counts == {"FAILED": 1, "WITHDRAWN": 2}


def test_a_silent_device_times_out_and_counts_as_failed(
    begin: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = begin()
    simulation(fleet, count=2, silent_rate=1.0)
    name = fleet.roll_out(make_bundle(), deadline_s=1.5)
    view = fleet.wait_for(name, "PAUSED")
    assert view.counts == {"SILENT": 1, "WAITING": 1}
    silent = next(part for part in view.assignments if part.state == "SILENT")
    assert silent.because == "said nothing decisive within 1.5 s"


@on_all
def test_a_rollback_leads_devices_back_to_the_release_before_and_they_confirm_it(
    begin: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = begin()
    simulation(fleet, count=3)
    fleet.wait_for(fleet.roll_out(make_bundle("1.0.0", 1)), "FINISHED")
    name = fleet.roll_out(make_bundle("2.0.0", 2))
    fleet.wait_for(name, "FINISHED")
    assert versions(fleet) == {"2.0.0"}
    settings = RolloutSettings(waves="1,100%", soak_s=0.2, deadline_s=400.0)
    (back,) = fleet.client.rollback(name, settings=settings)
    assert fleet.wait_for(back.rollout, "FINISHED").counts == {"COMMITTED": 3}
    assert versions(fleet) == {"1.0.0"}
    view = fleet.rollout(name)
    assert (view.state, view.counts) == ("ABORTED", {"RECALLED": 3})
    assert {part.because for part in view.assignments} == {"goes back in r3"}


def test_a_device_that_joins_later_gets_what_its_group_got(
    begin: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = begin()
    simulation(fleet, count=2)
    name = fleet.roll_out(make_bundle())
    fleet.wait_for(name, "FINISHED")
    simulation(fleet, count=1, prefix="late")
    fleet.wait_until(lambda: fleet.rollout(name).counts == {"COMMITTED": 3}, "the late one commits")
    assert fleet.rollout(name).state == "FINISHED"


def test_devices_in_a_running_rollout_are_not_offered_a_second_one(
    begin: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = begin()
    simulation(fleet, count=2, silent_rate=1.0)
    name = fleet.roll_out(make_bundle())
    with pytest.raises(
        FleetError, match=f"2 of 2 devices cannot take .*: in rollout {name}, which is RUNNING"
    ):
        fleet.roll_out(make_bundle("2.0.0", 2))
    fleet.client.pause_rollout(name)
    assert fleet.client.abort_rollout(name).counts == {"WITHDRAWN": 2}
    with pytest.raises(FleetError, match=f"rollout {name} is ABORTED, so it cannot re"):
        fleet.client.resume_rollout(name)


def test_a_killed_controller_resumes_its_rollouts(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle, mosquitto: Any
) -> None:
    fleet = serve("--broker", mosquitto.url)
    simulation(fleet, count=5)
    name = fleet.roll_out(make_bundle(size_bytes=2_000_000), waves="2,100%", soak_s=1.0)
    fleet.wait_until(lambda: "COMMITTED" not in fleet.rollout(name).counts, "it is under way")
    fleet.kill()
    fleet.start()
    view = fleet.wait_for(name, "FINISHED")
    assert view.counts == {"COMMITTED": 5}


def test_a_killed_fleet_with_the_embedded_broker_resumes_too(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = serve()
    simulation(fleet, count=4)
    name = fleet.roll_out(make_bundle(size_bytes=2_000_000), waves="2,100%", soak_s=1.0)
    fleet.wait_until(lambda: fleet.rollout(name).wave >= 1, "it is under way")
    fleet.kill()
    fleet.start()
    assert fleet.wait_for(name, "FINISHED").counts == {"COMMITTED": 4}


@on_all
def test_a_hundred_devices_cost_the_origin_one_bundle(
    begin: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = begin()
    simulation(fleet, count=100)
    size_bytes = 3_000_000
    name = fleet.roll_out(make_bundle(size_bytes=size_bytes), waves="100%", deadline_s=200.0)
    view = fleet.wait_for(name, "FINISHED")
    assert view.counts == {"COMMITTED": 100}
    sent = fleet.info().sent_bytes
    # On a busy machine the broker drops chunks, which are sent to all once more.
    assert sum(sent.values()) < 5 * size_bytes, "O(size), not 100 times the size"

    def told() -> int:
        return sum(row.devices for row in fleet.rollout(name).latency)

    # A loaded broker may drop what is said once; every device says its latency again each minute.
    fleet.wait_until(lambda: told() == 100, "every device told its latency")
    rows = {row.hardware_class: row for row in fleet.rollout(name).latency}
    assert rows["sim-hexagon-v73"].p50_ms < rows["sim-x86-vnni"].p50_ms


def versions(fleet: Any) -> set[str]:
    found = fleet.client.devices()
    return {model.active.version for device in found for model in device.models if model.active}


def test_an_embedded_broker_that_dies_is_started_again_and_the_rollout_goes_on(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = serve()
    simulation(fleet, count=3)
    name = fleet.roll_out(make_bundle(size_bytes=2_000_000), waves="1,100%", soak_s=1.0)
    fleet.wait_until(lambda: fleet.rollout(name).wave >= 1, "it is under way")
    for child in children_of(fleet.pid):
        os.kill(child, signal.SIGKILL)
    assert fleet.wait_for(name, "FINISHED").counts == {"COMMITTED": 3}


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
