"""Races of a candidate against the float model: faster, not faster, or undecided."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from edgepack.packager.runtime.timing import Turns
from edgepack.packager.search.speedup import Outcome, measure_speedup

ASKED = 1.05


def _races(
    speedup: float, seed: int, *, session: float, spikes: float = 0.0, drift: float = 0.0
) -> Callable[[], Turns]:
    """Return races with made-up times.

    Args:
        speedup: The true one.
        seed: Of the random numbers.
        session: Standard deviation of the log ratio between sessions.
        spikes: Share of inferences that are interrupted, 5 to 50 times as long.
        drift: How much slower the machine gets from race to race, for both models.
    """
    rng = np.random.default_rng(seed)
    state = {"slower": 1.0}

    def race() -> Turns:
        state["slower"] *= 1 + drift
        own_bias = math.exp(rng.normal(0.0, session))
        rows = []
        for base in (own_bias / speedup, 1.0):
            times = base * state["slower"] * np.exp(rng.normal(0.0, 0.05, 15))
            hit = rng.random(15) < spikes
            times[hit] *= rng.uniform(5.0, 50.0, int(hit.sum()))
            rows.append(tuple(times / 1e3))
        return Turns(times_s=tuple(rows))

    return race


@pytest.mark.parametrize(
    ("speedup", "outcome"),
    [(2.0, "faster"), (1.4, "faster"), (1.0, "not faster"), (0.7, "not faster")],
)
def test_a_clear_difference_is_decided_on_a_quiet_machine(speedup: float, outcome: str) -> None:
    for seed in range(50):
        raced = measure_speedup(_races(speedup, seed, session=0.01), ASKED)
        assert raced.outcome == outcome
        assert raced.low < raced.ratio < raced.high


@pytest.mark.parametrize("spikes", [0.0, 0.3])
@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_load_makes_a_race_undecided_and_never_the_opposite(spikes: float, drift: float) -> None:
    cases: tuple[tuple[float, Outcome], ...] = ((1.2, "not faster"), (0.92, "faster"))
    for speedup, opposite in cases:
        outcomes = [
            measure_speedup(
                _races(speedup, seed, session=0.09, spikes=spikes, drift=drift), ASKED
            ).outcome
            for seed in range(200)
        ]
        assert outcomes.count(opposite) <= 2, "three looks of 99 %"
        assert "undecided" in outcomes


def test_what_is_just_as_fast_as_asked_is_undecided() -> None:
    outcomes = [
        measure_speedup(_races(ASKED, seed, session=0.03), ASKED).outcome for seed in range(300)
    ]
    assert outcomes.count("undecided") >= 0.96 * len(outcomes)


def test_a_decided_race_ends_early_and_an_undecided_one_after_nine() -> None:
    assert measure_speedup(_races(3.0, 0, session=0.01), ASKED).races == 3
    undecided = measure_speedup(_races(ASKED, 0, session=0.05), ASKED)
    assert (undecided.races, undecided.outcome) == (9, "undecided")
    assert measure_speedup(_races(0.5, 0, session=0.01), None).races == 1


def test_without_time_for_more_races_it_is_undecided() -> None:
    raced = measure_speedup(_races(3.0, 0, session=0.01), ASKED, lambda: False)
    assert (raced.races, raced.outcome) == (1, "undecided")
    assert "interval" not in raced.describe()
