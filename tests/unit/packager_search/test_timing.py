"""For how long models are timed side by side, and by which clock."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from edgepack.packager.runtime import timing
from edgepack.packager.runtime.timing import take_turns


class _Clock:
    """Stands still but while a model runs."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.own_s = 0.0
        self.order: list[float] = []

    def perf_counter(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.own_s

    def model(
        self, taken_s: float, *, interrupted_s: float = 0.0, every: int = 1
    ) -> Callable[[Any], None]:
        """Return a model that takes so long.

        Args:
            taken_s: Without interruption.
            interrupted_s: How long other programs have the CPU.
            every: Interrupted is the first of so many runs.
        """
        turn = itertools.count()

        def run(_: Any) -> None:
            self.order.append(taken_s)
            self.now_s += taken_s
            self.own_s += taken_s
            if next(turn) % every == 0:
                self.now_s += interrupted_s

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
    turns = take_turns(runs, [{}], rounds=30)
    assert turns.medians_ms == pytest.approx((taken_s * 1e3, taken_s * 1e3))
    assert len(turns.times_s[0]) == pytest.approx(rounds, rel=0.05)


def test_each_second_turn_goes_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(timing, "time", clock)
    take_turns([clock.model(1.0), clock.model(2.0)], [{}], rounds=7)
    assert clock.order[2:8] == [1.0, 2.0, 2.0, 1.0, 1.0, 2.0], "after one that is not timed"


def test_other_programs_do_not_count_by_the_clock_of_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = _Clock()
    monkeypatch.setattr(timing, "time", clock)
    runs = [clock.model(0.01, interrupted_s=0.09), clock.model(0.02)]
    turns = take_turns(runs, [{}], rounds=30, clock=clock.thread_time)
    assert turns.medians_ms == pytest.approx((10.0, 20.0))
    assert take_turns(runs, [{}], rounds=30).medians_ms == pytest.approx((100.0, 20.0))
