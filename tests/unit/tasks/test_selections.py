"""What is selected is compared in any order, and by how much of it is there."""

import msgspec
import numpy as np
import pytest

from edgepack.bundle.golden import compare_outputs
from edgepack.bundle.metadata import GoldenAgreement
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.selection.measure import overlap

HALF = GoldenAgreement(part=TaskOutputs(task="selection", outputs=("boxes",)), keep=0.5)


def _boxes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 300, (count, 4)).astype(np.float32)


def test_the_same_rows_in_another_order_are_the_same() -> None:
    boxes = _boxes(20)
    assert overlap([boxes], [boxes[::-1]]) == 1.0
    assert overlap([np.arange(9)[None]], [np.arange(9)[None, ::-1]]) == 1.0


def test_rows_that_only_one_has_count_for_both_sides() -> None:
    boxes = _boxes(20)
    assert overlap([boxes], [boxes[:10]]) == pytest.approx(20 / 30)
    assert overlap([boxes], [boxes[:0]]) == 0.0
    assert overlap([boxes[:0]], [boxes[:0]]) == 1.0


def test_one_row_is_found_among_several() -> None:
    boxes = _boxes(5)
    assert overlap([boxes], [boxes[3:4]]) == pytest.approx(2 / 6)


def test_integers_are_the_same_only_where_they_are_equal() -> None:
    rows = np.array([[0, 0, 100], [0, 1, 200]])
    assert overlap([rows], [rows + np.array([0, 0, 1])]) == 0.0


def test_floats_may_differ_by_a_tenth_of_their_size() -> None:
    boxes = _boxes(20)
    size = float(np.sqrt(np.mean(boxes**2)))
    assert overlap([boxes], [boxes + np.float32(0.05 * size)]) == 1.0
    assert overlap([boxes[:1]], [boxes[:1] + np.float32(0.2 * size)]) == 0.0


def test_a_probe_takes_rows_in_any_order_and_of_any_number() -> None:
    boxes = _boxes(20)
    loose = msgspec.structs.replace(HALF, keep=0.8)
    got = [{"boxes": boxes[::-1][:19]}]
    seen = compare_outputs([{"boxes": boxes}], got, {}, (loose,))
    assert seen.right
    assert seen.because == "selection: overlap 0.9744, keeps 0.9744 (at least 0.8)"


def test_a_probe_refuses_other_rows_and_outputs_that_are_none() -> None:
    expected = [{"boxes": _boxes(20)}]
    other = compare_outputs(expected, [{"boxes": _boxes(20, seed=1) * 9}], {}, (HALF,))
    assert not other.right
    missing = compare_outputs(expected, [{}], {}, (HALF,))
    assert missing.because == "output 'boxes' was not computed"
    flat = compare_outputs(expected, [{"boxes": _boxes(20).ravel()}], {}, (HALF,))
    assert flat.because == "output 'boxes' has 1 axes, expected 2"
