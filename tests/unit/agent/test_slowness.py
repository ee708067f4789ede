"""A device compares the pace of a release with the previous release's pace: tables and a disk."""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.telemetry.pace import (
    FEWEST,
    KEPT,
    MAX_RELEASES,
    Interval,
    Pace,
    PaceKeeper,
    typical_ms,
)
from edgepack.agent.watch.observed import Observed, Verdict
from edgepack.agent.watch.slowness import INTERVALS, judge_past, judge_previous
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.telemetry import Telemetry
from tests.simulators.world import World
from tests.unit.agent.conftest import Releases


def window(
    latencies_ms: Sequence[float], *, digest: str = "d", start: float = 0.0, length_s: float = 60.0
) -> Telemetry:
    recorder = LatencyRecorder()
    for latency_ms in latencies_ms:
        recorder.record(latency_ms)
    return Telemetry(
        digest=digest,
        variant="cpu",
        provider="CPUExecutionProvider",
        window_start=start,
        window_s=length_s,
        latency=recorder.snapshot(),
    )


def pace_of(levels_ms: Sequence[float], *, count: int = 20) -> Pace:
    """Return a pace with an interval for each level."""
    pace = Pace()
    for level in levels_ms:
        pace = pace.plus(window([level] * count), 60.0)
    return pace


def judge(before: Pace, now: Pace, allowed: float, title: str, *, is_last: bool) -> Verdict:
    seen = Observed(
        is_soaking=True,
        title_before=title,
        before=before,
        now=now,
        slowdown=allowed,
        is_last=is_last,
    )
    return judge_previous(seen)


STEADY = [10.0] * 10
NOISY = [10.0, 30.0, 11.0, 28.0, 9.0, 33.0, 10.0, 25.0, 12.0, 31.0] * 3


@pytest.mark.parametrize(
    ("before", "now", "allowed", "is_last", "answer"),
    [
        (STEADY, [30.0] * INTERVALS, 2.0, False, "proven"),
        (STEADY, [21.0] * INTERVALS, 2.0, False, "proven"),
        (STEADY, [18.0] * INTERVALS, 2.0, False, "fine"),  # not gross: the fleet's gates decide
        (STEADY, [30.0] * (INTERVALS - 1), 2.0, False, "doubtful"),
        (STEADY, [30.0] * (INTERVALS - 1) + [10.0], 2.0, False, "fine"),  # a burst
        (STEADY, [30.0, 10.0] * INTERVALS, 2.0, False, "fine"),  # bursts
        (STEADY, [10.0] * 20 + [30.0] * INTERVALS, 2.0, False, "proven"),
        (STEADY, [30.0] * 2, 2.0, True, "proven"),  # no more time, and no sign of a burst
        (STEADY, [30.0], 2.0, True, "doubtful"),
        (STEADY, [30.0] * INTERVALS, 4.0, False, "fine"),  # the rollout lets it pass
        (STEADY[:2], [30.0] * INTERVALS, 2.0, False, "fine"),  # 40 inferences before
        (STEADY[:3], [30.0] * INTERVALS, 2.0, False, "proven"),
        (NOISY, [75.0] * INTERVALS, 2.0, False, "fine"),  # it varied as much before
        (NOISY, [900.0] * INTERVALS, 2.0, False, "proven"),
        ([], [900.0] * INTERVALS, 2.0, False, "fine"),
        (STEADY, [], 2.0, True, "fine"),
    ],
)
def test_a_gross_slowdown_over_several_intervals_is_proven_and_a_burst_is_not(
    before: list[float], now: list[float], allowed: float, is_last: bool, answer: str
) -> None:
    verdict = judge(pace_of(before), pace_of(now), allowed, "digits 1.0.0", is_last=is_last)
    assert verdict.answer == answer
    assert bool(verdict.because) == (answer == "proven")


@pytest.mark.parametrize(("first_ms", "answer"), [(300.0, "proven"), (110.0, "fine")])
def test_slow_first_tokens_of_a_release_that_soaks_are_proven(first_ms: float, answer: str) -> None:
    def pace(first_ms: float) -> Pace:
        found = Pace()
        for _ in range(2 * INTERVALS):
            first_tokens = window([first_ms] * 20).latency
            text = msgspec.structs.replace(window([10.0] * 20), first_tokens=first_tokens)
            found = found.plus(text, 60.0)
        return found

    before, now = pace(100.0), pace(first_ms)
    assert before.intervals == now.intervals, "their tokens take the same time"
    verdict = judge(before, now, 2.0, "chat 1.0.0", is_last=False)
    assert verdict.answer == answer
    if answer == "proven":
        assert "first tokens of texts take 3.0 times as long as with chat 1.0.0" in verdict.because


def past(levels: Sequence[float]) -> Verdict:
    """Return the verdict on a committed release by its own past."""
    return judge_past(Observed(is_soaking=False, before=pace_of(levels), slowdown=2.0))


@pytest.mark.parametrize("slow", [INTERVALS - 1, INTERVALS, 2 * INTERVALS, 8 * INTERVALS])
def test_slow_intervals_never_become_the_past_before_they_are_found(slow: int) -> None:
    verdict = past(STEADY[:4] + [30.0] * slow)
    assert verdict.answer == ("proven" if slow >= INTERVALS else "fine")
    assert past(STEADY[:4] + [30.0] * slow + [10.0]).answer == "fine"


@pytest.mark.parametrize("slow", [0, 1, 2, 6])
def test_gross_slowdown_is_found_however_late_its_reports_come(slow: int) -> None:
    recent = tuple(Interval(latency_ms=300.0, count=20, length_s=10.0) for _ in range(3))
    before = pace_of(STEADY[:5] + [300.0] * slow)
    seen = Observed(is_soaking=False, before=before, slowdown=2.0, recent=recent)
    assert judge_past(seen).answer == "proven"
    fast = Interval(latency_ms=20.0, count=20)
    seen = msgspec.structs.replace(seen, recent=(*recent[1:], fast))
    assert judge_past(seen).answer == ("proven" if slow >= INTERVALS else "fine")


def test_a_busier_application_hides_no_slowdown() -> None:
    """A ninth of all inferences are slow: some high percentiles are slow, some are not."""
    pace = pace_of([10.0] * 55, count=14)
    for _ in range(INTERVALS):
        pace = pace.plus(window([30.0] * 20), 60.0)
    assert judge_past(Observed(is_soaking=False, before=pace, slowdown=2.0)).answer == "proven"


def test_the_reason_has_the_numbers() -> None:
    verdict = judge(pace_of(STEADY), pace_of([30.0] * 6), 2.0, "digits 1.0.0", is_last=False)
    for fact in ("3.0 times as long as with digits 1.0.0", "6 intervals", "120 inferences", "2.0"):
        assert fact in verdict.because


def test_an_interval_under_way_that_is_slow_makes_it_doubtful() -> None:
    slow = Pace().plus(window([30.0] * 5, length_s=5.0), 60.0)
    few = Pace().plus(window([30.0] * 4, length_s=5.0), 60.0)
    odd = Pace().plus(window([10.0] * 4 + [90.0] * 2, length_s=5.0), 60.0)
    answers = [judge(pace_of(STEADY), now, 2.0, "", is_last=False)[0] for now in (slow, few, odd)]
    assert answers == ["doubtful", "fine", "fine"], "two slow ones are the first after a load"


def test_an_interval_has_its_length_and_enough_inferences() -> None:
    pace = Pace()
    for _ in range(11):
        pace = pace.plus(window([10.0], length_s=30.0), 60.0)
    assert (pace.intervals, pace.count) == ((), FEWEST - 1)
    pace = pace.plus(window([10.0], length_s=30.0), 60.0)
    assert [one.count for one in pace.intervals] == [FEWEST]
    short = Pace().plus(window([10.0] * 1000, length_s=59.0), 60.0)
    assert short.intervals == ()


@given(st.lists(st.integers(1, 200), min_size=1, max_size=150))
def test_an_hour_is_kept_however_long_a_release_serves(counts: list[int]) -> None:
    pace = Pace()
    for count in counts:
        pace = pace.plus(window([10.0] * count), 60.0)
    assert len(pace.intervals) <= KEPT
    assert pace.latency.count <= sum(counts)
    if pace.intervals:
        shown = sum(one.count for one in pace.intervals)
        assert len(pace.intervals) >= KEPT // 2 or pace.latency.count == shown
        assert pace.latency.count <= shown or len(pace.intervals) == KEPT


def test_the_slowest_two_inferences_never_count_alone() -> None:
    recorder = LatencyRecorder()
    for latency_ms in (1.0, 1.0, 1.0, 500.0, 900.0):
        recorder.record(latency_ms)
    assert typical_ms(recorder.snapshot(), 5) == pytest.approx(1.0, rel=0.05)


def test_false_alarms_are_rare_where_nothing_changed_and_twice_as_slow_is_found() -> None:
    """Log latencies of a minute vary by .1 with a memory of an hour, and bursts come."""
    rng = random.Random(7)

    def minutes(ratio: float, count: int) -> list[float]:
        level, burst, found = rng.gauss(0, 0.06), 0, []
        for _ in range(count):
            level = 0.98 * level + rng.gauss(0, 0.012)
            burst = burst - 1 if burst else (rng.randint(1, 4) if rng.random() < 0.02 else 0)
            extra = rng.uniform(0.1, 1.0) if burst else 0.0
            found.append(10 * ratio * math.exp(level + extra + rng.gauss(0, 0.08)))
        return found

    def share(ratio: float) -> float:
        hits = 0
        for _ in range(300):
            before, now = pace_of(minutes(1.0, 60)), Pace()
            for level in minutes(ratio, 10):
                now = now.plus(window([level] * 20), 60.0)
                if judge(before, now, 2.0, "", is_last=False).answer == "proven":
                    hits += 1
                    break
        return hits / 300

    assert share(1.0) <= 0.01
    assert share(1.3) <= 0.02
    assert share(2.6) >= 0.9


def test_the_pace_is_known_after_a_restart(tmp_path: Path) -> None:
    buffer = TelemetryBuffer(tmp_path)
    buffer.paces.add([window([10.0] * 30, digest="one", start=100.0), window([9.0] * 5)])
    buffer.commit(seals=False)
    again = TelemetryBuffer(tmp_path).paces
    assert again.paces == buffer.paces.paces
    assert again.of("one", "cpu").seen_at == 160.0
    assert again.of("never", "cpu") == Pace()


def test_releases_of_long_ago_are_forgotten() -> None:
    keeper = PaceKeeper(60.0)
    for number in range(MAX_RELEASES + 3):
        keeper.add([window([10.0] * 30, digest=str(number)), window([1.0] * 30, digest="serves")])
    kept = [number for number in range(MAX_RELEASES + 3) if keeper.of(str(number), "cpu").count]
    assert kept == list(range(4, MAX_RELEASES + 3))
    assert keeper.of("serves", "cpu").count


def soak_slowly(
    world: World,
    releases: Releases,
    levels_ms: Sequence[float] = (30.0,) * 9,
    *,
    length_s: float = 60.0,
    **order: Any,
) -> None:
    """Bring release 2, three times as slow as release 1 unless told otherwise."""
    new = releases.two.ref.digest
    world.paces[releases.one.ref.digest] = pace_of(STEADY)
    world.boot().start()
    windows = [window([ms] * 30, digest=new, length_s=length_s) for ms in levels_ms]
    world.collected = [Collected(telemetry=(one,)) for one in windows]
    wanted = msgspec.structs.replace(releases.two.order(2, soak_s=3, deadline_s=900.0), **order)
    world.updater.orders.offer(wanted)
    world.settle()


def test_a_slow_release_is_rolled_back_with_its_reason(world: World, releases: Releases) -> None:
    soak_slowly(world, releases)
    assert world.journal.state == "ROLLED_BACK"
    assert "inferences take 3.0 times as long as with tiny 1.1.0" in world.journal.because


@pytest.mark.parametrize("order", [{"max_slowdown": None}, {"max_slowdown": 5.0}])
def test_a_rollout_may_let_a_slower_release_pass(
    world: World, releases: Releases, order: dict[str, Any]
) -> None:
    soak_slowly(world, releases, **order)
    assert world.journal.state == "COMMITTED"


@pytest.mark.parametrize(
    ("levels_ms", "state"),
    [
        ([150.0] * 3, "ROLLED_BACK"),
        ([150.0] * 2 + [10.0] * 20, "COMMITTED"),  # a burst
        ([80.0] * 3 + [10.0] * 20, "COMMITTED"),  # not gross: five intervals of a minute decide
    ],
)
def test_a_gross_slowdown_ends_a_soak_in_half_a_minute(
    world: World, releases: Releases, levels_ms: list[float], state: str
) -> None:
    soak_slowly(world, releases, levels_ms, length_s=10.0)
    assert world.journal.state == state
    is_back = state == "ROLLED_BACK"
    assert ("15.0 times as long as with tiny 1.1.0" in world.journal.because) == is_back
    assert ("3 intervals" in world.journal.because) == is_back
