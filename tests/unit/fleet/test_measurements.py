"""Devices' measurements are counted by wave and class, and compared with the previous release."""

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from edgepack.fleet.database import audit, measurements
from edgepack.fleet.database.measurements import AWAITED, AWAITED_DRIFT, Sample, WaveSums
from edgepack.fleet.database.measures import FULL_INFERENCES, ReleaseMeasurements
from edgepack.fleet.database.schema import MeasurementRow
from edgepack.fleet.rollouts import execution
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import BundleRef, Telemetry, decode, encode
from tests.simulators.world import make_facts
from tests.unit.fleet.world import NEW, OLD, PROVIDER, World, says


def window(
    bundle: BundleRef,
    start: float,
    latency_ms: float = 8.0,
    count: int = 100,
    **more: Any,
) -> Telemetry:
    recorder = LatencyRecorder()
    for _ in range(count):
        recorder.record(latency_ms)
    told = Telemetry(
        digest=bundle.digest,
        variant="cpu",
        provider=PROVIDER,
        window_start=start,
        window_s=30.0,
        latency=recorder.snapshot(),
    )
    return msgspec.structs.replace(told, **more)


def sums(world: World, name: str) -> dict[str, WaveSums]:
    """Return the sums of the only class, all waves together."""
    with world.store.reading() as session:
        found = measurements.sums_of(session, int(name[1:]))
    together: dict[str, WaveSums] = defaultdict(WaveSums)
    for waves in found.values():
        for wave in waves:
            for gate, one in wave.items():
                together[gate] = together[gate].plus(one)
    return together


def recounted(world: World, rollout: int) -> dict[str, WaveSums]:
    found: dict[str, WaveSums] = defaultdict(WaveSums)
    with world.store.reading() as session:
        rows = session.scalars(select(MeasurementRow).where(MeasurementRow.rollout == rollout))
        for row in rows:
            measured = msgspec.json.decode(row.measured, type=dict[str, Sample])
            before = msgspec.json.decode(row.baseline, type=dict[str, float])
            for gate, name in (("p95", AWAITED), ("drift", AWAITED_DRIFT)):
                if row.is_awaited and gate in before and gate not in measured:
                    found[name] = found[name].plus(WaveSums(devices=1))
            for gate, one in measured.items():
                if one.before is None:
                    found[gate] = found[gate].plus(WaveSums(unbased=1))
                else:
                    change = one.value - one.before
                    found[gate] = found[gate].plus(WaveSums(1, 0, change, change**2, one.before))
    return found


def prepare(world: World, devices: Sequence[str], latency_ms: float = 8.0) -> None:
    """Make devices with the old release and measured latencies."""
    for device in devices:
        world.enroll(device)
        serve_old(world, device)
        world.hear(device, window(OLD, 1.0, latency_ms), "telemetry")


def serve_old(world: World, device: str) -> None:
    said = says("COMMITTED", active=OLD)
    world.hear(device, msgspec.structs.replace(said, facts=make_facts()))


def commit(world: World, device: str) -> None:
    sequence = world.orders(device)[-1].sequence
    world.hear(device, says("COMMITTED", sequence, active=NEW, previous=OLD))


def test_a_device_is_compared_with_itself(world: World) -> None:
    prepare(world, "a", 8.0)
    prepare(world, "b", 20.0)
    name = world.start()
    world.look()
    for device, latency_ms in (("a", 10.4), ("b", 26.0)):
        commit(world, device)
        world.hear(device, window(NEW, 2.0, latency_ms), "telemetry")
    p95 = sums(world, name)["p95"]
    assert p95.devices == 2
    assert math.exp(p95.total / 2) == pytest.approx(1.3, abs=0.04)
    assert math.exp(p95.before / 2) == pytest.approx(math.sqrt(8 * 20), rel=0.03)


def test_a_device_that_told_too_little_before_is_compared_with_its_class(world: World) -> None:
    prepare(world, "ab", 8.0)
    world.enroll("c")
    serve_old(world, "c")
    world.hear("c", window(OLD, 1.0, 99.0, count=5), "telemetry")
    name = world.start()
    world.look()
    world.hear("c", window(NEW, 2.0, 8.0), "telemetry")
    p95 = sums(world, name)["p95"]
    assert math.exp(p95.before) == pytest.approx(8.0, rel=0.03)


def test_what_has_no_baseline_is_counted_apart(world: World) -> None:
    world.enroll("a")
    name = world.start()
    world.look()
    world.hear("a", window(NEW, 2.0, 8.0), "telemetry")
    assert sums(world, name)["p95"] == WaveSums(unbased=1)
    gate = next(view for view in world.view(name).gates if view.name == "p95")
    assert gate.verdict == "no baseline"


def test_too_few_inferences_say_nothing(world: World) -> None:
    prepare(world, "a")
    name = world.start()
    world.look()
    world.hear("a", window(NEW, 2.0, 99.0, count=59), "telemetry")
    assert "p95" not in sums(world, name)
    world.hear("a", window(NEW, 40.0, 99.0, count=1), "telemetry")
    assert sums(world, name)["p95"].devices == 1


def test_a_wave_waits_for_devices_that_measured_before_and_not_for_others(world: World) -> None:
    prepare(world, "a")
    name = world.start()
    world.look()
    commit(world, "a")
    assert world.view(name).state == "RUNNING", "it has not told what it measures"
    world.hear("a", window(NEW, 2.0), "telemetry")
    assert world.view(name).state == "FINISHED"


def test_the_wait_for_measurements_ends(world: World) -> None:
    prepare(world, "a")
    name = world.start(evidence_s=0.0)
    world.look()
    commit(world, "a")
    world.look()
    view = world.view(name)
    assert view.state == "FINISHED"
    assert {gate.verdict for gate in view.gates if gate.name != "failures"} >= {"no evidence"}


def test_a_message_that_comes_twice_counts_once(world: World) -> None:
    prepare(world, "a")
    name = world.start()
    world.look()
    for _ in range(2):
        world.hear("a", window(NEW, 2.0), "telemetry")
    with world.store.reading() as session:
        row = session.get_one(MeasurementRow, ("a", NEW.digest))
        assert msgspec.json.decode(row.told, type=ReleaseMeasurements).recent.latency.count == 100
    assert sums(world, name)["p95"].devices == 1


def test_memory_temperature_drift_and_shadow_are_compared_and_older_agents_send_none(
    world: World,
) -> None:
    prepare(world, "ab")
    said: dict[str, Any] = {"memory_bytes": 100, "temperature_c": 50.0, "drift": 0.05}
    shadow = {"shadow_count": 100, "shadow_agreed": 98}
    world.hear("a", window(OLD, 50.0, **said, **shadow), "telemetry")
    name = world.start()
    world.look()
    worse: dict[str, Any] = {"memory_bytes": 130, "temperature_c": 62.5, "drift": 0.25}
    more = {"shadow_count": 100, "shadow_agreed": 88}
    world.hear("a", window(NEW, 60.0, **worse, **more), "telemetry")
    world.hear("b", window(NEW, 60.0), "telemetry")
    found = sums(world, name)
    assert found["memory"].total == pytest.approx(math.log(1.3))
    assert found["temperature"].total == pytest.approx(12.5)
    assert found["drift"].total == pytest.approx(0.2)
    assert found["shadow"].total == pytest.approx(0.12), "of what is a comparison already"
    assert {found[gate].devices for gate in ("memory", "temperature", "drift", "shadow")} == {1}


def test_drift_is_awaited_of_devices_that_told_it_before(world: World) -> None:
    prepare(world, "ab")
    world.hear("a", window(OLD, 50.0, drift=0.05), "telemetry")
    name = world.start()
    world.look()
    for device in "ab":
        commit(world, device)
    assert sums(world, name)[AWAITED].devices == 2
    assert sums(world, name)[AWAITED_DRIFT].devices == 1
    for device in "ab":
        world.hear(device, window(NEW, 60.0), "telemetry")
    assert sums(world, name)[AWAITED].devices == 0
    assert sums(world, name)[AWAITED_DRIFT].devices == 1
    world.hear("a", window(NEW, 90.0, drift=0.1), "telemetry")
    assert sums(world, name)[AWAITED_DRIFT].devices == 0


def test_an_older_agents_window_is_read(world: World) -> None:
    document = msgspec.json.decode(encode(window(NEW, 1.0)))
    for name in ("memory_bytes", "temperature_c", "drift", "shadow_count", "shadow_agreed"):
        del document[name]
    document["minor"] = 1
    told = decode(msgspec.json.encode(document), Telemetry)
    assert (told.memory_bytes, told.drift, told.shadow_count) == (None, None, 0)


def test_older_inferences_make_room_for_newer_ones() -> None:
    told = ReleaseMeasurements()
    for start in range(4):
        latency_ms = 10.0 if start < 2 else 20.0
        told = told.plus([window(NEW, start, latency_ms, count=FULL_INFERENCES)])
    assert told.measures()["p95"] == pytest.approx(20.0, rel=0.03)
    assert told.older.latency.count + told.recent.latency.count == 2 * FULL_INFERENCES


def test_a_breach_pauses_and_a_person_who_resumes_accepts_it(world: World) -> None:
    devices = "abcde"
    prepare(world, devices)
    name = world.start()
    world.look()
    for device in devices:
        world.hear(device, window(NEW, 2.0, 10.4), "telemetry")
        commit(world, device)
    view = world.view(name)
    assert view.state == "PAUSED"
    assert view.because.startswith("p95 of ")
    assert [gate.name for gate in view.gates if gate.verdict == "breach"] == ["p95"]
    with world.store.transaction("token alice") as session:
        execution.resume(session, execution.find(session, name), 5.0)
    world.look()
    view = world.view(name)
    assert view.state == "FINISHED"
    assert next(gate for gate in view.gates if gate.name == "p95").verdict == "accepted"


def test_a_breach_can_roll_everybody_back(world: World) -> None:
    devices = "abcde"
    prepare(world, devices)
    name = world.start(on_breach="rollback")
    world.look()
    for device in devices:
        commit(world, device)
        world.hear(device, window(NEW, 2.0, 10.4), "telemetry")
    assert world.view(name).state == "ABORTED"
    assert world.view(name).counts == {"RECALLED": 5}
    world.look()
    assert {world.orders(device)[-1].bundle for device in devices} == {OLD}


def breach_with_a_rollback(world: World, devices: str, **changes: Any) -> str:
    prepare(world, devices)
    name = world.start(on_breach="rollback", **changes)
    world.look()
    for device in devices:
        commit(world, device)
        world.hear(device, window(NEW, 2.0, 10.4), "telemetry")
    world.look()
    return name


def test_a_breach_orders_nobody_to_go_back_to_what_was_withdrawn_and_waits_for_a_person(
    world: World,
) -> None:
    world.withdrawn = {OLD}
    name = breach_with_a_rollback(world, "abcde")
    view = world.view(name)
    assert (view.state, view.counts) == ("PAUSED", {"COMMITTED": 5})
    why = f"5 devices cannot go back: digits 1.0.0 ({'01' * 6}), which it ran before, was withdrawn"
    assert view.because.startswith("p95 of ")
    assert view.because.endswith(f"; {why}")
    assert {world.orders(device)[-1].bundle for device in "abcde"} == {NEW}
    with world.store.reading() as session:
        entry = audit.entries(session, audit.Wanted(action="rollout.breach"), 10)[0]
    assert (entry.because, entry.actor) == (view.because, "gate p95")
    assert entry.numbers["on_breach"] == "rollback"


def test_a_hardware_class_that_cannot_go_back_is_held_where_it_is(world: World) -> None:
    world.withdrawn = {OLD}
    name = breach_with_a_rollback(world, "abcde", split_by="hardware")
    view = world.view(name)
    assert view.counts == {"COMMITTED": 5}
    assert all("was withdrawn" in held for held in view.held.values())
    assert len(view.held) == 1
    assert {world.orders(device)[-1].bundle for device in "abcde"} == {NEW}


def test_sums_are_what_a_recount_gives_whatever_is_told(world: World) -> None:
    rng = random.Random(3)
    devices = "abcd"
    prepare(world, devices[:3])
    world.enroll("d")
    name = world.start(waves="2,100%", evidence_s=1e6, gates=dict.fromkeys(("p95", "p99")))
    world.look()
    for step in range(60):
        device = rng.choice(devices)
        if rng.random() < 0.3 and world.orders(device):
            commit(world, device)
        else:
            told = window(
                rng.choice((OLD, NEW)),
                100.0 + step,
                rng.uniform(4, 12),
                rng.choice((5, 70, 300)),
                temperature_c=rng.uniform(40, 60),
            )
            world.hear(device, told, "telemetry")
        expected = recounted(world, int(name[1:]))
        for gate, one in sums(world, name).items():
            assert one == pytest.approx(expected.get(gate, WaveSums()), abs=1e-9), gate
    assert not world.inbox.counters["broken"]
