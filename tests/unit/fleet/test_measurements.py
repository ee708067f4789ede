"""Devices' measurements are counted by wave and class, and compared with the previous release."""

import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select

from edgepack.fleet.database import audit, changes, measurements
from edgepack.fleet.database.measurements import AWAITED, COMMITTED, COMPARED, Sample
from edgepack.fleet.database.measures import (
    FULL_INFERENCES,
    PAIR,
    ReleaseMeasurements,
    Value,
    typical,
)
from edgepack.fleet.database.schema import AssignmentRow, LookRow, MeasurementRow, NoiseRow
from edgepack.fleet.documents.gates import TIMED, Found, GateView
from edgepack.fleet.rollouts import execution
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import decode, encode
from edgepack.wire.orders import BundleRef
from edgepack.wire.telemetry import Telemetry
from tests.simulators.world import make_facts
from tests.unit.fleet.world import NEW, OLD, PROVIDER, World, says

SWITCH = time.time() - 7200.0
"""Time of the switch to the new release."""


def window(
    bundle: BundleRef,
    start: float,
    latency_ms: float = 8.0,
    count: int = 100,
    window_s: float = 600.0,
    **more: Any,
) -> Telemetry:
    """Return telemetry; a window of five minutes or more is a value of its own."""
    recorder = LatencyRecorder()
    for _ in range(count):
        recorder.record(latency_ms)
    told = Telemetry(
        digest=bundle.digest,
        variant="cpu",
        provider=PROVIDER,
        window_start=start,
        window_s=window_s,
        latency=recorder.snapshot(),
    )
    return msgspec.structs.replace(told, **more)


def counts(world: World, name: str) -> Counter[str]:
    """Return the counts of all classes and waves together."""
    with world.store.reading() as session:
        found = measurements.counts_of(session, int(name[1:]))
    return sum((Counter(wave) for waves in found.values() for wave in waves), Counter[str]())


def looks(world: World, name: str) -> list[tuple[int, int, Found]]:
    """Return wave, look and the result of p95 of the looks so far."""
    with world.store.reading() as session:
        query = select(LookRow).where(LookRow.rollout == int(name[1:]))
        rows = session.scalars(query.order_by(LookRow.wave, LookRow.look)).all()
        return [(row.wave, row.look, row.found.get("p95", Found())) for row in rows]


def gate_of(world: World, name: str, gate: str) -> GateView:
    (found,) = [view for view in world.view(name).gates if view.name == gate]
    return found


def recounted(world: World, rollout: int) -> Counter[str]:
    found: Counter[str] = Counter()
    with world.store.reading() as session:
        rows = session.scalars(select(MeasurementRow).where(MeasurementRow.rollout == rollout))
        for row in rows:
            measured = msgspec.json.decode(row.measured, type=dict[str, Sample])
            told = msgspec.json.decode(row.told, type=ReleaseMeasurements)
            is_committed = "fallbacks" in measured and "fallbacks" in row.baseline
            found[COMMITTED] += is_committed
            found[COMPARED] += row.is_compared
            found[AWAITED] += row.is_compared and is_committed and told.timed_s < 540
            if row.is_compared:
                found.update(f"look {i}" for i in range(2) if told.timed_s >= (540, 1620)[i])
    return found


def prepare(world: World, devices: Sequence[str], latency_ms: float = 8.0, **more: Any) -> None:
    """Make devices with the old release and an hour of measured latencies."""
    for device in devices:
        world.enroll(device)
        serve_old(world, device)
        told = window(OLD, SWITCH - 3600.0, latency_ms, 1000, 3600.0, **more)
        world.hear(device, told, "telemetry")


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
        world.hear(device, window(NEW, SWITCH, latency_ms), "telemetry")
    world.look()
    p95 = gate_of(world, name, "p95")
    assert (p95.devices, p95.controls) == (2, 0)
    assert p95.value == pytest.approx(1.3, abs=0.04)
    assert p95.before == pytest.approx(math.sqrt(8 * 20), rel=0.03)
    assert "without controls" in p95.because


@pytest.mark.parametrize("ahead_s", [0.0, 75.0, 150.0, 225.0])
def test_controls_count_from_the_first_look_on_whenever_their_windows_begin(
    world: World, ahead_s: float
) -> None:
    prepare(world, "abcdefgh")
    name = world.start(waves="4,100%", evidence_s=0.0)
    world.look()
    first = {one.device for one in world.view(name).assignments if one.state == "OFFERED"}
    look_s = 2 * 273.0
    starts = [at - ahead_s for at in (0.0, 300.0, 600.0) if at - ahead_s + 300.0 <= look_s]
    for device in {*"abcdefgh"} - first:
        for at in starts:
            world.hear(device, window(OLD, SWITCH + at, 9.6, 1000, 300.0), "telemetry")
    for device in first:
        commit(world, device)
        for at in (0.0, 273.0):
            world.hear(device, window(NEW, SWITCH + at, 9.6, 1000, 273.0), "telemetry")
    p95 = gate_of(world, name, "p95")
    assert (p95.devices, p95.controls) == (3, 4), "the look is taken as most devices measured"
    assert p95.value == pytest.approx(1.0, abs=0.03)


def test_a_change_of_devices_that_wait_is_subtracted(world: World) -> None:
    """All devices become slower at the switch: the release is not the reason."""
    prepare(world, "abcdefgh")
    for device in "abcdefgh":
        world.hear(device, window(OLD, SWITCH, 9.6, 1000), "telemetry")
    name = world.start(waves="4,100%", evidence_s=0.0)
    world.look()
    first = [one.device for one in world.view(name).assignments if one.state == "OFFERED"]
    for device in first:
        commit(world, device)
        world.hear(device, window(NEW, SWITCH, 9.6 * 1.05), "telemetry")
    p95 = gate_of(world, name, "p95")
    assert (p95.devices, p95.controls) == (4, 4)
    assert p95.value == pytest.approx(1.05, abs=0.03)
    assert p95.verdict == "pass"
    assert "over 4 devices against 4 controls" in p95.because


def test_looks_are_taken_once_as_most_devices_of_a_wave_have_measured_so_long(
    world: World,
) -> None:
    prepare(world, "abc")
    name = world.start()
    world.look()
    for device in "ab":
        world.hear(device, window(NEW, SWITCH, 8.0), "telemetry")
        assert len(looks(world, name)) == (device == "b")
    for device in "ab":
        world.hear(device, window(NEW, SWITCH + 600, 8.0, window_s=1200.0), "telemetry")
    assert [(wave, look) for wave, look, _ in looks(world, name)] == [(0, 0), (0, 1)]
    assert {found.devices for *_, found in looks(world, name)} == {2}
    for device in "abc":
        commit(world, device)
    world.hear("c", window(NEW, SWITCH, 8.0), "telemetry")
    assert [look for _, look, _ in looks(world, name)] == [0, 1, 5], "at the end of the wave"
    assert looks(world, name)[-1][2].devices == 3
    assert world.view(name).state == "FINISHED"


def test_devices_of_a_control_group_get_the_release_last_and_that_wave_has_no_looks(
    world: World,
) -> None:
    devices = "abcdef"
    prepare(world, devices)
    name = world.start(waves="2,100%", control="2")
    with world.store.reading() as session:
        query = select(AssignmentRow.wave, func.count()).group_by(AssignmentRow.wave)
        assert dict(session.execute(query).all()) == {0: 2, 1: 2, 2: 2}
    held_back: set[str] = set()
    for wave in range(3):
        world.look()
        offered = {one.device for one in world.view(name).assignments if one.state == "OFFERED"}
        held_back = offered if wave == 2 else held_back
        for device in set(devices) - offered if wave == 0 else ():
            world.hear(device, window(OLD, SWITCH, 8.0), "telemetry")
        for device in offered:
            commit(world, device)
            world.hear(device, window(NEW, SWITCH + wave, 8.0), "telemetry")
        world.look()
    assert len(held_back) == 2
    assert world.view(name).state == "FINISHED"
    assert {(wave, found.controls) for wave, _, found in looks(world, name)} == {(0, 4), (1, 2)}


def test_what_has_no_baseline_is_counted_apart(world: World) -> None:
    world.enroll("a")
    name = world.start()
    world.look()
    commit(world, "a")
    world.hear("a", window(NEW, SWITCH, 8.0), "telemetry")
    world.look()
    assert gate_of(world, name, "p95").verdict == "no evidence", "it committed before it measured"
    world.enroll("b")
    world.hear("b", window(NEW, SWITCH, 8.0), "telemetry")
    commit(world, "b")
    with world.store.reading() as session:
        hardware = session.scalars(select(MeasurementRow.hardware_class)).first()
        found = changes.changes_over_time(
            session, int(name[1:]), hardware or "", model="digits", look_s=600.0
        )
    assert (found["p95"].numbers, found["p95"].unbased) == ((), 2)


def test_too_few_inferences_say_nothing(world: World) -> None:
    prepare(world, "a")
    name = world.start()
    world.look()
    world.hear("a", window(NEW, SWITCH, 99.0, count=59), "telemetry")
    assert counts(world, name)["look 0"] == 0
    world.hear("a", window(NEW, SWITCH + 600, 99.0, count=1), "telemetry")
    assert counts(world, name)["look 0"] == 1


def test_a_wave_waits_for_devices_that_measured_before_and_not_for_others(world: World) -> None:
    prepare(world, "a")
    world.enroll("b")
    serve_old(world, "b")
    name = world.start()
    world.look()
    for device in "ab":
        commit(world, device)
    assert world.view(name).state == "RUNNING", "it has not told what it measures"
    assert counts(world, name)[AWAITED] == 1
    world.hear("a", window(NEW, SWITCH), "telemetry")
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
    world.hear_twice("a", window(NEW, SWITCH), "telemetry")
    with world.store.reading() as session:
        row = session.get_one(MeasurementRow, ("a", NEW.digest))
        told = msgspec.json.decode(row.told, type=ReleaseMeasurements)
    assert told.recent.latency.count == 100
    assert len(told.values) == 1
    assert counts(world, name)["look 0"] == 1


def test_memory_temperature_drift_energy_and_shadow_are_compared_and_older_agents_send_none(
    world: World,
) -> None:
    prepare(world, "a", memory_bytes=100, temperature_c=50.0, drift=0.05, energy_j=500.0)
    prepare(world, "b")
    name = world.start()
    world.look()
    worse: dict[str, Any] = {"memory_bytes": 130, "temperature_c": 62.5, "drift": 0.25}
    worse["energy_j"] = 65.0  # .65 J instead of .5 J an inference
    more = {"shadow_count": 100, "shadow_agreed": 88}
    for device, said in (("a", worse | more), ("b", {})):
        world.hear(device, window(NEW, SWITCH, **said), "telemetry")
        commit(world, device)
    world.look()
    values = {view.name: view.value for view in world.view(name).gates if view.devices == 1}
    assert values == {
        "memory": pytest.approx(1.3, abs=1e-4),
        "temperature": pytest.approx(12.5),
        "drift": pytest.approx(0.2),
        "energy": pytest.approx(1.3, abs=1e-4),
        "shadow": pytest.approx(0.12),
    }


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
        failures = 0 if start < 2 else FULL_INFERENCES
        told = told.plus([window(NEW, start, count=FULL_INFERENCES, failures=failures)])
    assert told.measures()["errors"] == 0.5
    assert told.older.latency.count + told.recent.latency.count == 2 * FULL_INFERENCES


def test_windows_are_gathered_to_values_of_five_minutes_and_a_wild_clock_counts_as_now() -> None:
    short = [window(NEW, SWITCH + 60 * n, 5.0 + n, 30, 60.0) for n in range(11)]
    told = ReleaseMeasurements().plus(short, now=SWITCH + 660)
    assert [(one.end - one.start) for one in told.values] == [300.0, 300.0]
    assert told.began == SWITCH
    assert math.exp(told.values[0].measures[0] or 0) == pytest.approx(9.0, rel=0.03)
    wild = ReleaseMeasurements().plus([window(NEW, 0.0)], now=SWITCH)
    assert (wild.values[0].start, wild.values[0].end) == (SWITCH - 600, SWITCH)


@pytest.mark.parametrize(
    ("told", "expected"),
    [((), None), ((1.0,), 1.0), ((9.0, 1.0), 1.0), ((9.0, 1.0, 2.0), 1.5), ((9, 1, 2, 3), 2.5)],
)
def test_a_burst_is_not_the_typical_value(told: Sequence[float], expected: float | None) -> None:
    rest = (None,) * (len(TIMED) - 1)
    values = [Value(start=0.0, end=300.0, measures=(x, *rest)) for x in told]
    assert typical(values) == (expected, *rest)


def test_noise_is_learnt_from_devices_whose_release_does_not_change(world: World) -> None:
    world.enroll("a")
    serve_old(world, "a")
    for n in range(2 * PAIR):
        latency_ms = 8.0 if n % PAIR < PAIR - 2 else 8.0 * 1.5
        world.hear("a", window(OLD, SWITCH + 300 * n, latency_ms, window_s=300.0), "telemetry")
    with world.store.reading() as session:
        rows = {row.gate: row for row in session.scalars(select(NoiseRow))}
        hardware = rows["p95"].hardware_class
        learnt = changes.noise_of(session, OLD.name, hardware)
        assumed = changes.noise_of(session, OLD.name, "another class")
    assert rows["p95"].pairs == 2
    assert math.sqrt(rows["p95"].squares / 2) == pytest.approx(math.log(1.5), abs=0.03)
    assert (assumed["p95"], assumed["memory"]) == (0.055, 0.05)
    expected = math.sqrt((30 * 0.055**2 + rows["p95"].squares) / 32)
    assert learnt["p95"] == pytest.approx(expected)


def test_a_breach_pauses_and_a_person_who_resumes_accepts_it(world: World) -> None:
    devices = "abcde"
    prepare(world, devices)
    name = world.start()
    world.look()
    for device in devices:
        world.hear(device, window(NEW, SWITCH, 12.8), "telemetry")
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
    for device in devices:
        world.hear(device, window(NEW, SWITCH, 12.8), "telemetry")
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
    for device in devices:
        world.hear(device, window(NEW, SWITCH, 12.8), "telemetry")
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


def test_counts_are_what_a_recount_gives_whatever_is_told(world: World) -> None:
    rng = random.Random(3)
    devices = "abcd"
    prepare(world, devices[:3])
    world.enroll("d")
    off: dict[str, float | None] = dict.fromkeys(("p95", "p99"))
    name = world.start(waves="2,100%", evidence_s=1e6, gates=off)
    world.look()
    for step in range(60):
        device = rng.choice(devices)
        if rng.random() < 0.3 and world.orders(device):
            commit(world, device)
        else:
            bundle, count = rng.choice((OLD, NEW)), rng.choice((5, 70, 300))
            told = window(bundle, SWITCH + 100 * step, rng.uniform(4, 12), count, 300.0)
            world.hear(device, told, "telemetry")
        found = counts(world, name)
        expected = recounted(world, int(name[1:]))
        names = (COMMITTED, COMPARED, AWAITED, "look 0", "look 1")
        assert [found[one] for one in names] == [expected[one] for one in names]
    assert not world.inbox.counters["broken"]


def test_value_of_texts_waits_for_enough_texts() -> None:
    """Five texts have inferences enough for `p95`, and a value of first tokens needs twenty."""
    told = ReleaseMeasurements()
    for number in range(5):
        texts = LatencyRecorder()
        for _ in range(5):
            texts.record(80.0)
        start, first = SWITCH + 300.0 * number, texts.snapshot()
        told = told.plus([window(NEW, start, window_s=300.0, first_tokens=first)])
    (value,) = told.values
    assert value.end - value.start == 1200.0
    assert math.exp(value.measures[TIMED.index("first_token")] or 0) == pytest.approx(80, rel=0.05)
