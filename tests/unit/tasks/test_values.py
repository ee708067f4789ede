"""Check what numbers keep: their variance from sample to sample, and how vectors differ."""

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.contract import Measure
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.embedding.measure import neighbourhood_kept
from edgepack.tasks.plain_error import measure_error
from edgepack.tasks.table import TASKS
from edgepack.tasks.values.measure import explain

_ROWS, _WIDTH, _COUNT = 32, 48, 20
_SHORT, _LONG = 2, 16
"""Values from which on a row is a vector: in an embedding, and in what nobody described."""


def _hidden(seed: int = 0) -> np.ndarray:
    """A transformer's hidden states: what a sample's rows share, and what they do not."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(0, 0.5, (_COUNT, 1, 1, _WIDTH))
    return np.asarray(shared + rng.normal(0, 1, (_COUNT, 1, _ROWS, _WIDTH)), dtype=np.float32)


def _named(values: Sequence[Tensor]) -> list[Outputs]:
    return [{"h": value} for value in values]


def _measure(
    expected: Sequence[Tensor], got: Sequence[Tensor], task: str = "unknown"
) -> dict[str, Measure]:
    """Return the measures of a task by metric."""
    opened = TASKS[task].open(TaskOutputs(task=task, outputs=("h",)), _named(expected))
    return {measure.metric: measure for measure in opened.measure(_named(got)).measures}


def _add(noise: np.ndarray) -> dict[str, Measure]:
    want = _hidden()
    return _measure(list(want), list(want + noise))


def test_noise_of_single_rows_averages_out_among_neighbours() -> None:
    rng = np.random.default_rng(1)
    measures = _add(rng.normal(0, 0.3, _hidden().shape))
    assert measures["explained_variance"].value < 0.95
    assert measures["neighbourhood"].value > 0.98


def test_noise_that_a_samples_rows_share_moves_it_among_its_neighbours() -> None:
    rng = np.random.default_rng(1)
    measures = _add(rng.normal(0, 0.12, (_COUNT, 1, 1, _WIDTH)))
    assert measures["explained_variance"].value > 0.98
    assert measures["neighbourhood"].value < 0.96
    assert measures["neighbourhood"].kept < 0.99


def test_declared_values_need_to_keep_their_variance_alone() -> None:
    shared = np.random.default_rng(1).normal(0, 0.12, (_COUNT, 1, 1, _WIDTH)).astype(np.float32)
    measures = _measure(list(_hidden()), list(_hidden() + shared), "values")
    assert list(measures) == ["explained_variance"]
    assert measures["explained_variance"].kept > 0.99


def test_channels_that_stand_out_leave_the_others_a_vector_with_neighbours() -> None:
    rng = np.random.default_rng(1)
    sizes = np.where(np.arange(_WIDTH) < 3, 100.0, 1.0)
    values = (_hidden() * sizes).astype(np.float32)
    shared = (rng.normal(0, 0.12, (_COUNT, 1, 1, _WIDTH)) * sizes).astype(np.float32)
    measures = _measure(list(values), list(values + shared))
    assert min(measures.values(), key=lambda measure: measure.kept).metric == "neighbourhood"
    assert measures["neighbourhood"].kept < 0.99


def test_a_shift_that_all_samples_share_leaves_neighbours_alone() -> None:
    rng = np.random.default_rng(1)
    measures = _add(np.broadcast_to(rng.normal(0, 0.3, _WIDTH), _hidden().shape))
    assert measures["explained_variance"].value < 0.95
    assert measures["neighbourhood"].value == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1, 48), (1, 3, 8, 48)])
def test_other_outputs_have_no_neighbourhood(shape: tuple[int, ...]) -> None:
    values = list(np.random.default_rng(0).normal(0, 1, (_COUNT, *shape)).astype(np.float32))
    assert "neighbourhood" not in _measure(values, values)


def test_outputs_of_another_shape_have_no_neighbourhood_and_keep_nothing() -> None:
    want = list(_hidden())
    measures = _measure(want, [value[:, 1:] for value in want])
    assert "neighbourhood" not in measures
    assert measures["explained_variance"].value < 0.0


def test_halves_are_added_up_in_more_bits_than_they_have() -> None:
    rng = np.random.default_rng(0)
    want = [rng.normal(1000, 9, (1, 400)).astype(np.float16) for _ in range(3)]
    got = [(value + np.float16(9)).astype(np.float16) for value in want]
    assert explain(want, got).value == pytest.approx(0.0, abs=0.1), "off by what they vary"
    assert measure_error("y", want, got).nrmse == pytest.approx(0.009, rel=0.01)


def test_even_a_short_vector_has_neighbours_where_a_person_declares_an_embedding() -> None:
    rng = np.random.default_rng(0)
    values = list(rng.normal(0, 1, (_COUNT, 1, 4)).astype(np.float32))
    assert neighbourhood_kept(values, values, _LONG) is None
    found = neighbourhood_kept(values, values, _SHORT)
    assert found is not None
    assert found[0] == 1.0
    assert _measure(values, values, "embedding")["neighbourhood"].value == 1.0


def test_a_sample_in_which_nothing_is_found_is_compared_with_the_others() -> None:
    found, nothing = np.ones((2, 4), np.float32), np.ones((0, 4), np.float32)
    error = measure_error("boxes", [found, nothing], [found + np.float32(0.5), nothing])
    assert error.max_abs_error == 0.5
    assert error.nrmse == pytest.approx(0.5)


def test_large_outputs_are_compared_one_after_the_other() -> None:
    rng = np.random.default_rng(0)
    expected = [rng.normal(size=(1, 40, 2500)).astype(np.float32) for _ in range(24)]
    got = [value + np.float32(0.1) for value in expected]
    tracemalloc.start()
    try:
        explained = explain(expected, got)
        measure_error("y", expected, got)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert explained.value == pytest.approx(0.99, abs=1e-3)
    one_bytes = 2 * expected[0].nbytes
    assert peak_bytes < 10 * one_bytes, "all 24 in float64 at once would be 24 times one"


def test_some_of_the_samples_are_measured_as_if_there_were_no_others() -> None:
    want = _hidden()
    got = want + np.random.default_rng(3).normal(0, 0.1, want.shape).astype(np.float32)
    part = TaskOutputs(task="unknown", outputs=("h",))
    opened = TASKS["unknown"].open(part, _named(list(want)))
    whole = opened.measure(_named(list(got)))
    assert opened.measure(_named(list(got))) == whole, "known by then"
    alone = TASKS["unknown"].open(part, _named(list(want[::2]))).measure(_named(list(got[::2])))
    few = opened.of(range(0, _COUNT, 2)).measure(_named(list(got[::2])))
    assert few.value == alone.value != whole.value
    other = opened.measure(_named(list(want + 2 * (got - want))))
    assert other.value < whole.value


@pytest.mark.parametrize("shape", [(0, 4), (1, 0), (2, 0, 3)])
def test_outputs_that_hold_nothing_are_the_same(shape: tuple[int, ...]) -> None:
    empty = [np.zeros(shape, dtype=np.float32) for _ in range(_COUNT)]
    assert explain(empty, empty).value == 1.0
    error = measure_error("h", empty, empty)
    assert (error.nrmse, error.max_abs_error) == (0.0, 0.0)


def test_samples_without_objects_are_measured_beside_others() -> None:
    rng = np.random.default_rng(0)
    boxes = [rng.uniform(0, 90, (count % 3, 4)).astype(np.float32) for count in range(_COUNT)]
    assert all(measure.value == 1.0 for measure in _measure(boxes, boxes).values())
    nothing = [np.zeros((2, 0, 3), np.float32)] * _COUNT
    assert all(measure.value == 1.0 for measure in _measure(nothing, nothing).values())
