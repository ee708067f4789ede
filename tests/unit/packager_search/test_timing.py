"""For how long models are timed side by side."""

from collections.abc import Callable
from typing import Any

import pytest

from edgepack.packager.judging import timing
from edgepack.packager.judging.timing import interleaved_medians_ms


class _Clock:
    """Stands still but while a model runs."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.runs = 0

    def perf_counter(self) -> float:
        return self.now_s

    def model(self, taken_s: float) -> Callable[[Any], None]:
        def run(_: Any) -> None:
            self.now_s += taken_s
            self.runs += 1

        return run


@pytest.mark.parametrize(
    ("taken_s", "rounds"),
    [(0.0001, 256), (0.002, 30), (0.01, 15), (1.0, 7)],
    ids=["smallest", "small", "usual", "large"],
)
def test_small_models_take_more_turns_and_large_ones_fewer(
    taken_s: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = _Clock()
    monkeypatch.setattr(timing, "time", clock)
    runs = [clock.model(taken_s), clock.model(taken_s)]
    medians_ms = interleaved_medians_ms(runs, [{}], rounds=30)
    assert medians_ms == pytest.approx((taken_s * 1e3, taken_s * 1e3))
    turns = (clock.runs - len(runs)) / len(runs)
    assert turns == pytest.approx(rounds, rel=0.05), "one more of each is not timed"
