"""For how long models are timed side by side."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from edgepack.packager.runtime import timing
from edgepack.packager.runtime.timing import interleaved_medians_ms


class _Clock:
    """Stands still but while a model runs."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.own_s = 0.0
        self.runs = 0

    def perf_counter(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return self.own_s

    def model(
        self, taken_s: float, *, interrupted_s: float = 0.0, every: int = 1, elsewhere: bool = False
    ) -> Callable[[Any], None]:
        """A model that takes so long.

        Args:
            taken_s: Without interruption.
            interrupted_s: For which others have the CPU.
            every: In one run of so many, the first of them.
            elsewhere: Whether it computes on other threads.
        """
        turn = itertools.count()

        def run(_: Any) -> None:
            self.runs += 1
            self.now_s += taken_s
            self.own_s += 0.0 if elsewhere else taken_s
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
    medians_ms = interleaved_medians_ms(runs, [{}], rounds=30)
    assert medians_ms == pytest.approx((taken_s * 1e3, taken_s * 1e3))
    turns = (clock.runs - len(runs)) / len(runs)
    assert turns == pytest.approx(rounds, rel=0.05), "one more of each is not timed"


def _medians_ms(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch, *runs: Callable[[Any], None]
) -> Any:
    monkeypatch.setattr(timing, "time", clock)
    return pytest.approx(interleaved_medians_ms(runs, [{}], rounds=30))


def test_turns_that_others_interrupted_do_not_count_where_enough_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = _Clock()
    small = clock.model(0.001, interrupted_s=0.009, every=2)
    assert _medians_ms(clock, monkeypatch, small, clock.model(0.002)) == (1.0, 2.0)
    clock = _Clock()
    seldom_alone = clock.model(0.001, interrupted_s=0.009)
    assert _medians_ms(clock, monkeypatch, seldom_alone, clock.model(0.002)) == (10.0, 2.0)
    assert clock.now_s == pytest.approx(1.0, abs=0.05), "it waited for calm turns"


def test_what_computes_on_other_threads_is_timed_by_all_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = _Clock()
    runs = [clock.model(taken_s, elsewhere=True) for taken_s in (0.01, 0.02)]
    assert _medians_ms(clock, monkeypatch, *runs) == (10.0, 20.0)
    assert clock.now_s < 0.5, "calm turns are not waited for where there can be none"
