"""Distances that tell what a use would lose, and how sure a number from few samples is."""

import tracemalloc

import numpy as np
import pytest

from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.verdict_notes import describe_verdict
from edgepack.packager.metrics.distance import OutputDistance, measure_distance
from edgepack.packager.metrics.kinds import OutputKind
from edgepack.packager.profiles.schema import AccuracyGate
from edgepack.packager.tensors.sequence import Samples, State
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.intervals import kept_low, share_low

_ROWS, _WIDTH, _COUNT = 32, 48, 20


def _hidden(seed: int = 0) -> np.ndarray:
    """A transformer's hidden states: what a sample's rows share, and what they do not."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, 0.5, (_COUNT, 1, 1, _WIDTH))
    return np.asarray(shared + rng.normal(0, 1, (_COUNT, 1, _ROWS, _WIDTH)), dtype=np.float32)


def _measure(noise: np.ndarray) -> OutputDistance:
    want = _hidden()
    return measure_distance("h", OutputKind.VALUES, list(want), list(want + noise))


def _named(values: np.ndarray) -> list[Outputs]:
    return [{"h": value} for value in values]


def test_noise_of_single_rows_averages_out_among_neighbours() -> None:
    rng = np.random.default_rng(1)
    distance = _measure(rng.normal(0, 0.3, _hidden().shape))
    assert distance.neighbourhood is not None
    assert distance.explained_variance < 0.95
    assert distance.neighbourhood > 0.98


def test_noise_that_a_samples_rows_share_moves_it_among_its_neighbours() -> None:
    rng = np.random.default_rng(1)
    distance = _measure(rng.normal(0, 0.12, (_COUNT, 1, 1, _WIDTH)))
    assert distance.neighbourhood is not None
    assert distance.explained_variance > 0.98
    assert distance.neighbourhood < 0.96
    verdict = Reference(_named(_hidden()), AccuracyGate()).judge(
        _named(_hidden() + rng.normal(0, 0.12, (_COUNT, 1, 1, _WIDTH)).astype(np.float32))
    )
    assert (verdict.metric, verdict.passed) == ("neighbourhood", False)


def test_where_a_profile_asks_for_variance_alone_neighbours_do_not_count() -> None:
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 0.12, (_COUNT, 1, 1, _WIDTH)).astype(np.float32)
    gate = AccuracyGate(metric="explained_variance")
    verdict = Reference(_named(_hidden()), gate).judge(_named(_hidden() + shared))
    assert (verdict.metric, verdict.passed) == ("explained_variance", True)


def test_channels_that_stand_out_leave_the_others_a_vector_with_neighbours() -> None:
    rng = np.random.default_rng(1)
    sizes = np.where(np.arange(_WIDTH) < 3, 100.0, 1.0)
    values = (_hidden() * sizes).astype(np.float32)
    shared = (rng.normal(0, 0.12, (_COUNT, 1, 1, _WIDTH)) * sizes).astype(np.float32)
    verdict = Reference(_named(values), AccuracyGate()).judge(_named(values + shared))
    assert (verdict.metric, verdict.passed) == ("neighbourhood", False)


def test_a_shift_that_all_samples_share_leaves_neighbours_alone() -> None:
    rng = np.random.default_rng(1)
    distance = _measure(np.broadcast_to(rng.normal(0, 0.3, _WIDTH), _hidden().shape))
    assert distance.explained_variance < 0.95
    assert distance.neighbourhood == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1, 48), (1, 3, 8, 48)])
def test_other_outputs_have_no_neighbourhood(shape: tuple[int, ...]) -> None:
    values = list(np.random.default_rng(0).normal(0, 1, (_COUNT, *shape)).astype(np.float32))
    assert measure_distance("y", OutputKind.VALUES, values, values).neighbourhood is None


@pytest.mark.parametrize(
    ("metric", "budget", "passes"),
    [("sqnr_db", 10.0, True), ("sqnr_db", 30.0, False), ("neighbourhood", 0.98, True)],
)
def test_a_metric_may_be_forced(metric: str, budget: float, passes: bool) -> None:
    noise = np.random.default_rng(1).normal(0, 0.2, _hidden().shape).astype(np.float32)
    limits = {"sqnr_db_min" if metric == "sqnr_db" else "neighbourhood_min": budget}
    gate = AccuracyGate(metric=metric, **limits)  # type: ignore[arg-type]
    verdict = Reference(_named(_hidden()), gate).judge(_named(_hidden() + noise))
    assert (verdict.metric, verdict.budget, verdict.passed) == (metric, budget, passes)
    if metric == "sqnr_db":
        assert verdict.float_value == 100.0, "decibels that float rounding leaves"
        assert verdict.spare == pytest.approx((verdict.value - budget) / (100.0 - budget))


def test_outputs_of_another_shape_have_no_neighbourhood_and_keep_nothing() -> None:
    want = list(_hidden())
    shorter = [value[:, 1:] for value in want]
    distance = measure_distance("h", OutputKind.VALUES, want, shorter)
    assert distance.neighbourhood is None
    assert distance.explained_variance < 0.0


def test_halves_are_added_up_in_more_bits_than_they_have() -> None:
    rng = np.random.default_rng(0)
    want = [rng.normal(1000, 9, (1, 400)).astype(np.float16) for _ in range(3)]
    got = [(value + np.float16(9)).astype(np.float16) for value in want]
    distance = measure_distance("y", OutputKind.VALUES, want, got)
    assert distance.explained_variance == pytest.approx(0.0, abs=0.1), "off by what they vary"
    assert distance.nrmse == pytest.approx(0.009, rel=0.01)


def test_even_a_short_vector_has_neighbours_where_a_person_says_that_it_is_one() -> None:
    rng = np.random.default_rng(0)
    values = list(rng.normal(0, 1, (_COUNT, 1, 4)).astype(np.float32))
    assert measure_distance("y", OutputKind.VALUES, values, values).neighbourhood is None
    assert measure_distance("y", OutputKind.EMBEDDING, values, values).neighbourhood == 1.0


def test_a_sample_in_which_nothing_is_found_is_compared_with_the_others() -> None:
    found, nothing = np.ones((2, 4), np.float32), np.ones((0, 4), np.float32)
    distance = measure_distance(
        "boxes", OutputKind.VALUES, [found, nothing], [found + np.float32(0.5), nothing]
    )
    assert distance.max_abs_error == 0.5
    assert distance.nrmse == pytest.approx(0.5)


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (10, 6)])
def test_decisions_that_all_agree_are_as_sure_as_they_are_many(count: int, rows: int) -> None:
    scores = np.random.default_rng(0).normal(0, 1, (count, rows, 5)).astype(np.float32)
    same = measure_distance("y", OutputKind.SEQUENCE, list(scores), list(scores))
    assert same.row_agreement == 1.0
    assert same.row_agreement_low == share_low(1.0, count * rows) < 1.0
    other = measure_distance("y", OutputKind.SEQUENCE, list(scores), list(-scores))
    assert other.row_agreement == 0.0


def test_a_share_of_few_samples_is_less_sure_than_of_many() -> None:
    assert share_low(1.0, 30) == pytest.approx(0.917, abs=1e-3)
    assert share_low(1.0, 3000) > 0.999
    assert share_low(0.9, 30) < 0.9 < share_low(0.9, 30) + 0.13


def test_samples_that_lose_alike_make_a_sure_number_and_one_outlier_does_not() -> None:
    assert kept_low([0.1] * 20, [1.0] * 20) == pytest.approx(0.9)
    assert kept_low([0.0] * 19 + [2.0], [1.0] * 20) < 0.8


def test_the_report_says_how_sure_the_verdict_is_and_that_it_comes_from_chains() -> None:
    values = np.random.default_rng(0).normal(0, 1, (16, 1, 1)).astype(np.float32)
    outputs = [{"speech": value, "stateN": value} for value in values]
    reference = Reference(outputs, AccuracyGate())
    verdict = reference.judge(outputs)
    states = (State(input="state", output="stateN"),)
    samples = Samples(count=16, read=lambda index: {}, source="samples", states=states)
    first, second = describe_verdict(verdict, 16, samples, reference.distances(outputs))
    assert first == (
        "explained_variance of output 'speech' is 1.0000 on 16 held-out samples: with 95 % "
        "confidence at least 1.0000 on samples like these."
    )
    assert second == (
        "Judged on 16 chains of 8 inferences, each feeding its state to the next; single "
        "inferences keep explained variance 1.0000 of 'speech'."
    )


def test_large_outputs_are_compared_one_after_the_other() -> None:
    rng = np.random.default_rng(0)
    expected = [rng.normal(size=(1, 40, 2500)).astype(np.float32) for _ in range(24)]
    got = [value + np.float32(0.1) for value in expected]
    tracemalloc.start()
    try:
        distance = measure_distance("y", OutputKind.SEQUENCE, expected, got)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert distance.explained_variance == pytest.approx(0.99, abs=1e-3)
    one_bytes = 2 * expected[0].nbytes
    assert peak_bytes < 10 * one_bytes, "all 24 in float64 at once would be 24 times one"


def test_what_the_float_model_alone_tells_is_that_of_the_samples_that_are_judged() -> None:
    want = _hidden()
    got = want + np.random.default_rng(3).normal(0, 0.1, want.shape).astype(np.float32)
    reference, few = Reference(_named(want), AccuracyGate()), range(0, _COUNT, 2)
    whole = reference.judge(_named(got))
    assert reference.judge(_named(got)) == whole, "known by then"
    alone = Reference(_named(want[::2]), AccuracyGate()).judge(_named(got[::2]))
    assert reference.of(few).judge(_named(got[::2])).value == alone.value != whole.value
    other = reference.judge(_named(want + 2 * (got - want)))
    assert other.value < whole.value


@pytest.mark.parametrize("shape", [(0, 4), (1, 0), (2, 0, 3)])
def test_outputs_that_hold_nothing_are_the_same(shape: tuple[int, ...]) -> None:
    empty = [np.zeros(shape, dtype=np.float32) for _ in range(_COUNT)]
    distance = measure_distance("h", OutputKind.VALUES, empty, empty)
    assert (distance.explained_variance, distance.nrmse, distance.max_abs_error) == (1.0, 0.0, 0.0)
