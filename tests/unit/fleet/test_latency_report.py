"""Percentiles over any devices and any time, from sums."""

import time
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import select

from edgepack.errors import FleetError
from edgepack.fleet.database import label_sets, latency, latency_report
from edgepack.fleet.database.schema import LabelledLatencyRow
from edgepack.fleet.documents.latency import LatencyPart, LatencyQuestion
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.telemetry import Telemetry
from tests.unit.fleet.world import OLD, World, telemetry_window

HOUR_S = 3600.0


def window(latencies_ms: list[float], ago_s: float = 60.0, **changes: Any) -> Telemetry:
    recorder = LatencyRecorder()
    for latency_ms in latencies_ms:
        recorder.record(latency_ms)
    told = replace(telemetry_window(), latency=recorder.snapshot(), failures=1)
    return replace(told, window_start=time.time() - ago_s, **changes)


def ask(world: World, **question: Any) -> tuple[LatencyPart, ...]:
    with world.store.reading() as session:
        return latency_report.report(session, LatencyQuestion(**question), time.time()).parts


def step(world: World, now: float, **question: Any) -> int:
    with world.store.reading() as session:
        return latency_report.report(session, LatencyQuestion(**question), now).step_s


@pytest.fixture
def told(world: World) -> World:
    """Make two groups and two releases, with measurements of the last minutes."""
    world.enroll("a", "doors")
    world.enroll("b", "cameras")
    for device, fast_ms in (("a", 10.0), ("b", 100.0)):
        world.hear(device, window([fast_ms] * 100, digest=OLD.digest), "telemetry")
        world.hear(device, window([fast_ms / 2] * 300, variant="npu"), "telemetry")
    return world


def test_what_is_not_told_apart_is_one_histogram_and_no_mean_of_percentiles(told: World) -> None:
    (whole,) = ask(told, by=())
    assert (whole.inferences, whole.failures, whole.model, whole.at) == (800, 4, "", None)
    # 300 of 5 ms, 100 of 10, 300 of 50, 100 of 100: the middle one is one of 10 ms.
    assert whole.p50_ms == pytest.approx(10, rel=0.03)
    assert whole.p99_ms == pytest.approx(100, rel=0.03)
    assert whole.max_ms == 100


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({"by": ("version",)}, [("1.0.0", 200), ("2.0.0", 600)]),
        ({"by": ("version",), "group": "doors"}, [("1.0.0", 100), ("2.0.0", 300)]),
        ({"by": ("version",), "where": "variant=npu"}, [("2.0.0", 600)]),
        ({"by": ("version",), "where": "not version=2.0.0"}, [("1.0.0", 200)]),
        ({"by": ("version",), "model": "faces"}, []),
    ],
)
def test_any_part_of_it_can_be_asked_for(
    told: World, question: dict[str, Any], expected: list[tuple[str, int]]
) -> None:
    assert [(part.version, part.inferences) for part in ask(told, **question)] == expected


def test_stretches_of_time_are_told_apart_and_bounded(told: World) -> None:
    told.hear("a", window([7.0] * 5, ago_s=3 * HOUR_S), "telemetry")
    now = time.time()
    parts = ask(told, by=("time",), since=now - 3.5 * HOUR_S)
    assert parts[0].inferences == 5
    assert sum(part.inferences for part in parts) == 805
    assert parts[0].at is not None
    assert parts[0].at <= now - 3 * HOUR_S
    assert sum(part.inferences for part in ask(told, since=now - HOUR_S)) == 800


@pytest.mark.parametrize(
    ("hours", "ended_hours_ago", "step_s"),
    [(1, 0, 60), (3, 0, 60), (5, 0, 3600), (24, 0, 3600), (2, 100, 3600), (24 * 30, 0, 86400)],
)
def test_the_shortest_sums_are_read_that_are_kept_and_few(
    world: World, hours: float, ended_hours_ago: float, step_s: int
) -> None:
    now = time.time()
    until = now - ended_hours_ago * HOUR_S
    assert step(world, now, since=until - hours * HOUR_S, until=until) == step_s


def test_what_is_too_much_is_refused_with_what_would_help(
    told: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latency_report, "MAX_ROWS", 3)
    with pytest.raises(FleetError) as refusal:
        ask(told)
    assert str(refusal.value).splitlines()[::2] == [
        "more than 3 sums would have to be read",
        "  try: name a --model or a --group, or a shorter time",
    ]
    assert len(ask(told, group="doors", by=("version",))) == 2


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ({"since": 200.0, "until": 100.0}, "the time ends before it begins"),
        ({"where": "site=berlin"}, "latency is not recorded by 'site'"),
        ({"where": "variant"}, "the expression makes no sense at its end"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(
    world: World, question: dict[str, Any], problem: str
) -> None:
    with pytest.raises(FleetError, match=problem):
        ask(world, **question)


def test_a_release_that_the_fleet_does_not_know_has_no_name(world: World) -> None:
    world.enroll("a")
    world.hear("a", window([1.0], digest="ff" * 32), "telemetry")
    (part,) = ask(world)
    assert (part.model, part.version, part.inferences) == ("", "", 1)


def labelled(world: World, count: int = 4) -> None:
    """Label devices at two sites in turn, the second half without a floor."""
    for n in range(count):
        world.enroll(f"l{n}")
        floor = {"floor": "1"} if n < count // 2 else {}
        world.change(f"l{n}", labels={"site": "berlin" if n % 2 else "rome", **floor})
        world.hear(f"l{n}", window([10.0 * (n + 1)] * 100), "telemetry")


def test_latency_is_told_by_labels_of_devices(told: World) -> None:
    labelled(told)
    (berlin,) = ask(told, by=(), where="site=berlin")
    assert (berlin.inferences, berlin.max_ms) == (200, 40.0)
    (both,) = ask(told, by=(), where="site=berlin and floor=1 and version=2.0.0")
    assert (both.inferences, both.max_ms) == (100, 20.0)
    # Devices without any label are not at that site; all of them together are what they were.
    (elsewhere,) = ask(told, by=(), where="not site=berlin")
    assert elsewhere.inferences == 200 + 800
    (whole,) = ask(told, by=())
    assert whole.inferences == 1200
    assert step(told, time.time(), where="site=rome", since=time.time() - 600) == 3600


def test_a_device_is_counted_by_the_labels_that_it_had(told: World) -> None:
    labelled(told, 1)
    told.change("l0", labels={"site": "berlin"})
    told.hear("l0", window([50.0] * 10, ago_s=30.0), "telemetry")
    assert [part.inferences for part in ask(told, by=(), where="site=rome")] == [100]
    assert [part.inferences for part in ask(told, by=(), where="site=berlin")] == [10]


def test_labels_beyond_the_bound_are_left_out_and_that_is_said(
    told: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_sets, "MAX_SETS", 3)  # one of them is of devices without labels
    labelled(told)
    with told.store.reading() as session:
        question = LatencyQuestion(where="site=rome or site=berlin", by=())
        found = latency_report.report(session, question, time.time())
    assert [part.inferences for part in found.parts] == [200]
    assert found.untold == 200
    assert ask(told, by=())[0].inferences == 1200


def test_labels_that_no_sum_has_any_more_make_room(told: World) -> None:
    labelled(told)
    year_s = 365 * 24 * HOUR_S
    with told.store.transaction() as session:
        latency.forget_old(session, time.time() + 2 * year_s)
    with told.store.reading() as session:
        assert not label_sets.read_sets(session)
    told.hear("l0", window([1.0] * 5, ago_s=1.0), "telemetry")
    with told.store.reading() as session:
        assert list(label_sets.read_sets(session).values()) == [{"floor": "1", "site": "rome"}]


def test_what_a_label_question_reads_is_bounded_by_labels_and_not_by_devices(told: World) -> None:
    for n in range(30):
        told.enroll(f"m{n}")
        told.change(f"m{n}", labels={"site": "berlin"})
        told.hear(f"m{n}", window([10.0] * 10), "telemetry")
    with told.store.reading() as session:
        rows = session.scalars(
            select(LabelledLatencyRow).where(LabelledLatencyRow.length_s == 3600)
        )
        sums = [row.start for row in rows if row.label_set == max(label_sets.read_sets(session))]
    assert len(sums) <= 2, "at the turn of an hour there are two"


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({"by": ("version",), "where": "device=a"}, [("1.0.0", 100), ("2.0.0", 300)]),
        ({"by": ("version",), "where": "device=a or device=b"}, [("1.0.0", 200), ("2.0.0", 600)]),
        ({"by": ("version",), "where": "not device=a and variant=npu"}, [("2.0.0", 300)]),
        ({"by": ("version",), "where": "device=a", "group": "cameras"}, []),
        ({"by": ("version",), "where": "device=nobody"}, []),
    ],
)
def test_latencies_of_named_devices_are_their_newest_inferences(
    told: World, question: dict[str, Any], expected: list[tuple[str, int]]
) -> None:
    assert [(part.version, part.inferences) for part in ask(told, **question)] == expected
    with told.store.reading() as session:
        found = latency_report.report(session, LatencyQuestion(**question), time.time())
    assert "the newest" in found.note


def test_latencies_of_named_devices_by_time_are_rejected_with_the_remedy(told: World) -> None:
    with pytest.raises(FleetError, match="not kept by time") as refusal:
        ask(told, by=("time",), where="device=a")
    assert "--by time" in str(refusal.value.remedy)
