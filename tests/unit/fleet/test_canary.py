"""A wave of a single device: another device tries the release before a stop."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from edgepack.fleet.documents.rollouts import RolloutView
from edgepack.fleet.rollouts import execution, retry
from tests.unit.fleet.test_measurements import (
    SWITCH,
    commit,
    counts,
    gate_of,
    prepare,
    window,
)
from tests.unit.fleet.world import NEW, OLD, World, says

DEVICES = ("a", "b", "c", "d")


def tried(world: World, name: str) -> str:
    """Return the device that tries the release now."""
    view = world.view(name)
    (device,) = [one.device for one in view.assignments if one.state in ("OFFERED", "WORKING")]
    return device


def measure(world: World, name: str, latency_ms: float) -> str:
    """Let the device under test commit the release and measure a latency; return the device."""
    device = tried(world, name)
    commit(world, device)
    world.hear(device, window(NEW, SWITCH, latency_ms), "telemetry")
    world.look()
    world.look()
    return device


def roll_back_slow(world: World, name: str) -> str:
    """Let the device under test roll back from a slow release."""
    device = tried(world, name)
    said = says("ROLLED_BACK", world.orders(device)[-1].sequence, active=OLD, because="3 x as long")
    slow = {key: msgspec.structs.replace(m, is_too_slow=True) for key, m in said.models.items()}
    world.hear(device, msgspec.structs.replace(said, models=slow))
    world.look()
    world.look()
    return device


def begin(world: World, **changes: Any) -> str:
    prepare(world, DEVICES)
    name = world.start(waves="1,100%", evidence_s=0.0, **changes)
    world.look()
    return name


def set_aside(view: RolloutView) -> list[tuple[str, str]]:
    return [(one.wanted, one.chosen) for one in view.set_aside]


def test_a_device_that_committed_and_breached_a_gate_alone_goes_back_and_another_one_tries(
    world: World,
) -> None:
    name = begin(world)
    odd = measure(world, name, 24.0)
    assert world.orders(odd)[-1].bundle == OLD
    assert world.orders(odd)[-1].rollback
    other = tried(world, name)
    view = world.view(name)
    assert set_aside(view) == [(odd, other)]
    assert view.state == "RUNNING"
    assert (view.wave, view.wave_counts) == (
        1,
        ({"OFFERED": 1, "WITHDRAWN": 1}, {"WAITING": 2}),
    )
    assert counts(world, name)["look 0"] == 0
    # What the device reports late of the release counts no more.
    world.hear(odd, window(NEW, SWITCH + 600, 24.0), "telemetry")
    assert counts(world, name)["look 0"] == 0
    assert gate_of(world, name, "p95").devices == 0, "another device tries: its looks begin anew"

    measure(world, name, 8.0)
    assert world.view(name).wave == 2
    for device in set(DEVICES) - {odd, other}:
        commit(world, device)
        world.hear(device, window(NEW, SWITCH, 8.0), "telemetry")
    world.look()
    view = world.view(name)
    assert (view.state, view.counts) == ("FINISHED", {"COMMITTED": 3, "WITHDRAWN": 1})
    assert view.because.endswith(f"set aside: {odd}")


@pytest.mark.parametrize("fail", [partial(measure, latency_ms=24.0), roll_back_slow])
def test_a_release_that_three_devices_measured_alone_is_taken_back(
    world: World, fail: Callable[[World, str], str]
) -> None:
    name = begin(world, on_breach="abort")
    odd = [fail(world, name) for _ in range(3)]
    view = world.view(name)
    assert view.state == "ABORTED"
    assert f"all 3 devices that tried it: {', '.join(odd)}" in view.because
    assert view.counts["WITHDRAWN"] == 3  # two set aside, and the one that no more was offered to
    assert not world.orders((set(DEVICES) - set(odd)).pop())


def test_a_person_decides_when_two_of_three_devices_measured_a_breach(world: World) -> None:
    name = begin(world, on_breach="abort")
    odd = [roll_back_slow(world, name) for _ in range(2)]
    fine = measure(world, name, 8.0)
    view = world.view(name)
    assert view.state == "PAUSED"
    assert view.because == (
        f"2 of 3 devices that tried it measured a breach: {', '.join(odd)}; {fine} did not"
    )
    with world.store.transaction() as session:
        execution.resume(session, execution.find(session, name), 5.0)
    world.look()
    world.look()
    assert world.view(name).state == "RUNNING"
    assert tried(world, name) not in (*odd, fine)


def test_a_rollout_pauses_when_no_other_device_can_try(world: World) -> None:
    name = begin(world)
    for device in set(DEVICES) - {tried(world, name)}:
        world.hear(device, says("COMMITTED", active=OLD, online=False))
    odd = measure(world, name, 24.0)
    view = world.view(name)
    assert (view.state, set_aside(view)) == ("PAUSED", [])
    assert "no other device of its hardware class waits and is online to try it" in view.because
    assert world.orders(odd)[-1].bundle == NEW


def test_a_device_stays_where_it_is_when_its_previous_release_was_withdrawn(world: World) -> None:
    name = begin(world)
    world.withdrawn.add(OLD)
    odd = measure(world, name, 24.0)
    assert world.view(name).state == "PAUSED"
    assert world.orders(odd)[-1].bundle == NEW


def test_devices_of_a_wave_that_a_person_chose_are_not_replaced(world: World) -> None:
    prepare(world, DEVICES)
    world.change("b", labels={"stage": "canary"})
    name = world.start(waves="stage=canary,100%", evidence_s=0.0)
    world.look()
    assert measure(world, name, 24.0) == "b"
    assert (world.view(name).state, set_aside(world.view(name))) == ("PAUSED", [])


def test_a_device_that_was_set_aside_can_try_again(world: World) -> None:
    name = begin(world)
    odd = roll_back_slow(world, name)
    measure(world, name, 8.0)
    with world.store.transaction() as session:
        retry.retry(session, execution.find(session, name), 5.0)
    world.look()
    world.look()
    (part,) = [one for one in world.view(name).assignments if one.device == odd]
    assert part.state == "OFFERED"


def test_any_other_failure_of_a_canary_stops_the_rollout(world: World) -> None:
    name = begin(world, on_breach="abort")
    device = tried(world, name)
    said = says("ROLLED_BACK", world.orders(device)[-1].sequence, active=OLD, because="wrong")
    world.hear(device, said)
    world.look()
    view = world.view(name)
    assert (view.state, set_aside(view)) == ("ABORTED", [])
