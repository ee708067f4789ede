"""Histograms: what is merged, in whatever order, says what the raw latencies would have said."""

import math
import random
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.errors import TransferError
from edgepack.wire import histogram as histograms
from edgepack.wire.histogram import LatencyRecorder, merge, percentile
from edgepack.wire.telemetry import Histogram

latencies = st.floats(min_value=1e-4, max_value=1e6, allow_nan=False)
samples = st.lists(latencies, min_size=1, max_size=200)


def recorded(values: list[float]) -> Histogram:
    recorder = LatencyRecorder()
    for value in values:
        recorder.record(value)
    return recorder.snapshot()


def same(one: Histogram, other: Histogram) -> bool:
    """Equal but for the last digits of the sum, which depend on the order of additions."""
    return math.isclose(one.sum_ms, other.sum_ms) and msgspec.structs.replace(
        one, sum_ms=0.0
    ) == msgspec.structs.replace(other, sum_ms=0.0)


@given(latencies)
def test_a_latency_lies_within_its_bucket(latency_ms: float) -> None:
    index = histograms.bucket_of(latency_ms, histograms.GROWTH)
    assert histograms.GROWTH ** (index - 1) < latency_ms <= histograms.GROWTH**index


@given(samples, samples, samples)
def test_merging_does_not_depend_on_order_or_grouping(
    a: list[float], b: list[float], c: list[float]
) -> None:
    one, two, three = recorded(a), recorded(b), recorded(c)
    assert same(merge([one, two]), merge([two, one]))
    assert same(merge([merge([one, two]), three]), merge([one, merge([two, three])]))
    assert same(merge([one, two, three]), recorded(a + b + c))


@given(samples, st.floats(min_value=0, max_value=100))
def test_a_percentile_is_within_two_and_a_half_percent_of_the_exact_one(
    values: list[float], percent: float
) -> None:
    rank = max(1, math.ceil(round(percent / 100 * len(values), 9)))
    exact = sorted(values)[rank - 1]
    assert percentile(recorded(values), percent) == pytest.approx(exact, rel=0.025)


@given(samples, st.randoms(use_true_random=False))
def test_percentiles_do_not_depend_on_the_order_of_inferences(
    values: list[float], rng: random.Random
) -> None:
    shuffled = list(values)
    rng.shuffle(shuffled)
    for percent in (50, 95, 99):
        assert percentile(recorded(values), percent) == percentile(recorded(shuffled), percent)


def test_the_extremes_are_exact() -> None:
    counted = recorded([0.37, 12.5, 8.0])
    assert (percentile(counted, 0), percentile(counted, 100)) == (0.37, 12.5)
    assert histograms.mean(counted) == pytest.approx(20.87 / 3)


@given(samples, samples)
def test_the_difference_of_two_snapshots_is_what_came_between(
    before: list[float], after: list[float]
) -> None:
    recorder = LatencyRecorder()
    for value in before:
        recorder.record(value)
    earlier = recorder.snapshot()
    for value in after:
        recorder.record(value)
    difference = histograms.subtract(recorder.snapshot(), earlier)
    assert difference.counts == recorded(after).counts
    assert difference.count == len(after)
    assert difference.min_ms <= min(after) * 1.000001
    assert difference.max_ms >= max(after) * 0.999999
    histograms.check(difference)


def test_a_snapshot_of_another_recorder_is_not_subtracted() -> None:
    with pytest.raises(ValueError, match="not a snapshot of the same recorder"):
        histograms.subtract(recorded([1.0]), recorded([2.0]))


def test_different_growth_is_not_merged() -> None:
    other = Histogram(growth=1.1, counts={1: 1}, count=1, sum_ms=1.1, min_ms=1.1, max_ms=1.1)
    with pytest.raises(ValueError, match=r"different growth cannot be merged: \[1.05, 1.1\]"):
        merge([recorded([1.0]), other])


def test_nothing_merges_to_nothing_and_nothing_has_no_percentile() -> None:
    assert merge([]) == merge([histograms.empty(), histograms.empty()]) == histograms.empty()
    with pytest.raises(ValueError, match="an empty histogram has no percentiles"):
        percentile(histograms.empty(), 95)


@pytest.mark.parametrize("percent", [-1, 100.1, math.nan])
def test_a_percentile_out_of_range_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match=r"asked for as 0 … 100"):
        percentile(recorded([1.0]), percent)


@pytest.mark.parametrize("latency_ms", [-1.0, math.nan, math.inf])
def test_an_impossible_latency_is_refused(latency_ms: float) -> None:
    with pytest.raises(ValueError, match="a latency is a finite number"):
        LatencyRecorder().record(latency_ms)


def test_a_clock_that_did_not_move_is_counted() -> None:
    assert recorded([0.0]).count == 1


def test_threads_lose_no_inference() -> None:
    recorder = LatencyRecorder()

    def work() -> None:
        for number in range(2000):
            recorder.record(1 + number % 7)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted = recorder.snapshot()
    assert counted.count == sum(counted.counts.values()) == 8000


def test_a_histogram_survives_the_wire() -> None:
    counted = recorded([0.2, 3.0, 3.01, 900.0])
    assert msgspec.json.decode(msgspec.json.encode(counted), type=Histogram) == counted


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"growth": 1.5}, "its growth is 1.5, not 1.05"),
        ({"counts": {0: -1, 1: 2}}, "a bucket's count is not positive"),
        ({"counts": {99999: 1}}, "index is beyond 2000"),
        ({"count": 7}, "do not add up"),
        ({"sum_ms": math.nan}, "sum or its extremes"),
        ({"min_ms": 5.0}, "sum or its extremes"),
    ],
)
def test_a_contradicting_histogram_from_the_wire_is_refused(
    change: dict[str, object], reason: str
) -> None:
    good = recorded([1.0])
    assert histograms.check(good) is good
    with pytest.raises(TransferError, match=reason):
        histograms.check(msgspec.structs.replace(good, **change))
