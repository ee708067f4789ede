"""Tasks leave padding out: where the float model's value is NaN, nothing is compared."""

from collections.abc import Sequence

import numpy as np
import pytest

from edgepack.tasks.arrays import Floats, Tensor
from edgepack.tasks.contract import Agreement
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.table import TASKS

_STEPS, _IN_USE, _COUNT = 24, 16, 20


def _measure(task: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Agreement:
    opened = TASKS[task].open(TaskOutputs(task=task, outputs=("y",)), [{"y": v} for v in expected])
    return opened.measure([{"y": value} for value in got])


def _draw(width: int) -> list[Floats]:
    rng = np.random.default_rng(0)
    return [rng.uniform(0.1, 0.9, (1, _STEPS, width)) for _ in range(_COUNT)]


def _padded(values: Sequence[Floats]) -> list[Floats]:
    padded = [value.copy() for value in values]
    for value in padded:
        value[:, _IN_USE:] = np.nan
    return padded


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    "task", ["unknown", "values", "sums", "threshold", "depth", "picture", "embedding"]
)
def test_padding_neither_costs_nor_hides_a_loss(task: str, width: int) -> None:
    values = _draw(width)
    noisy = [value + 0.2 * np.sin(9.0 * value) for value in values]
    whole = _measure(
        task, [value[:, :_IN_USE] for value in values], [value[:, :_IN_USE] for value in noisy]
    )
    assert _measure(task, _padded(values), _padded(values)).value == pytest.approx(1.0)
    assert _measure(task, _padded(values), _padded(noisy)).value == pytest.approx(whole.value)
    assert _measure(task, _padded(values), noisy).value == pytest.approx(whole.value)
