"""Check decisions: how many agree, and how sure that share is."""

from collections.abc import Sequence

import numpy as np
import pytest

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.classification.measure import compare_decisions, compare_rows, same_decisions
from edgepack.tasks.contract import Measure
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.intervals import kept_low, share_low
from edgepack.tasks.table import TASKS


def _measure(expected: Sequence[Tensor], got: Sequence[Tensor]) -> Measure:
    (measure,) = compare_decisions("y", expected, got).measures
    return measure


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (10, 6)])
def test_decisions_that_all_agree_are_as_sure_as_they_are_many(count: int, rows: int) -> None:
    scores = np.random.default_rng(0).normal(0, 1, (count, rows, 5)).astype(np.float32)
    same = _measure(list(scores), list(scores))
    assert same.value == 1.0
    assert same.low == share_low(1.0, count * rows) < 1.0
    assert _measure(list(scores), list(-scores)).value == 0.0


def test_several_whole_numbers_are_rows_and_one_is_a_decision() -> None:
    labels, points = [np.array([3])] * 12, [np.zeros((1, 4), np.int64)] * 12
    assert _measure(labels, labels).metric == "top1_agreement"
    assert _measure(points, points).metric == "sequence_agreement"


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (5, 1), (1, 0)])
def test_numbers_that_hold_no_row_decide_nothing(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    speech = [np.asarray(rng.uniform(0, 1, shape), np.float32) for _ in range(12)]
    constant = [np.full_like(value, 0.5) for value in speech]
    assert _measure(speech, speech).metric == "explained_variance"
    assert _measure(speech, constant).value < 0.5 or not speech[0].size


def test_rows_of_samples_count_as_many_as_they_are() -> None:
    same = [np.array([True, True, False]), np.array([True])]
    found = compare_rows("y", same)
    assert found.measures[0].value == 0.75
    assert found.losses.tolist() == pytest.approx([1 / 3, 0.0])


def test_what_cannot_be_compared_is_another_decision_and_padding_is_none() -> None:
    want = np.array([[1.0, 2.0], [np.nan, np.nan]], np.float32)
    assert same_decisions(want, want).tolist() == [True]
    assert same_decisions(want, want[:1]).tolist() == [False]
    assert same_decisions(want, np.full_like(want, np.inf)).tolist() == [False]


def test_a_share_of_few_samples_is_less_sure_than_of_many() -> None:
    assert share_low(1.0, 30) == pytest.approx(0.917, abs=1e-3)
    assert share_low(1.0, 3000) > 0.999
    assert share_low(0.9, 30) < 0.9 < share_low(0.9, 30) + 0.13


def test_samples_that_lose_alike_make_a_sure_number_and_one_outlier_does_not() -> None:
    assert kept_low([0.1] * 20, [1.0] * 20) == pytest.approx(0.9)
    assert kept_low([0.0] * 19 + [2.0], [1.0] * 20) < 0.8


@pytest.mark.parametrize("task", ["classification", "probabilities"])
def test_a_sample_without_rows_is_measured_beside_others(task: str) -> None:
    rng = np.random.default_rng(0)
    drawn = [np.exp(rng.normal(0, 3, (2 * (count % 3), 5))) for count in range(20)]
    shares = [(rows / rows.sum(axis=-1, keepdims=True)).astype(np.float32) for rows in drawn]
    outputs: list[Outputs] = [{"y": rows} for rows in shares]
    opened = TASKS[task].open(TaskOutputs(task=task, outputs=("y",)), outputs)
    agreement = opened.measure(outputs)
    assert (agreement.value, set(agreement.losses)) == (1.0, {0.0})
    if task == "classification":
        assert agreement.measures[0].metric == "sequence_agreement"
