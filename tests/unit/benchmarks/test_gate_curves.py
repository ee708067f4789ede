"""Operating curves of gates, with a few simulated rollouts, and the simulation's own arithmetic."""

import math

import numpy as np
import pytest

from benchmarks.gates.__main__ import measure_whole
from benchmarks.gates.world import Trial, World, compare, is_breach, run, typical
from edgepack.fleet.database import changes, measures
from edgepack.fleet.database.measures import PAIR_BEFORE, Value
from edgepack.fleet.documents.gates import BY_NAME, TIMED
from edgepack.fleet.rollouts.gates import find


def test_the_simulation_compares_devices_as_the_fleet_does() -> None:
    rng = np.random.default_rng(4)
    drawn = World().draw(rng, 3, PAIR_BEFORE + 24)
    switches = np.array([PAIR_BEFORE, PAIR_BEFORE, 10**6])
    told = [
        [
            Value(start=300.0 * n, end=300.0 * (n + 1), measures=(x,) * len(TIMED))
            for n, x in enumerate(one)
        ]
        for one in drawn
    ]
    assert typical(drawn)[0] == pytest.approx(measures.typical(told[0])[0])
    ends = 300.0 * PAIR_BEFORE, 300.0 * (PAIR_BEFORE + 24)
    pairs = [changes._pair(one, *ends, 600.0)[1][0] or 0.0 for one in told]
    found = compare(drawn, switches, PAIR_BEFORE + 24, 1)
    assert found.controls == 1
    assert found.numbers == pytest.approx([pairs[0] - pairs[2], pairs[1] - pairs[2]])


def test_evidence_and_bound_of_bets_agree() -> None:
    rng = np.random.default_rng(5)
    gate, plan = BY_NAME["shadow"], Trial().plan
    breaches = []
    for devices in range(3, 40):
        told = changes.Changes(tuple(rng.beta(0.5, 3.0, devices)), (0.0,) * devices)
        breaches.append(is_breach(gate, plan, told))
        assert breaches[-1] == (find(gate, told, plan, gate.noise, 1.0).bound > gate.threshold)
    assert len(set(breaches)) == 2


@pytest.mark.parametrize(
    ("change", "world", "waves", "rollouts", "stopped"),
    [
        (1.10, World(), (3, 6, 12, 25), 30, (0, 1)),
        (1.0, World(heat=math.log(1.2)), (3, 6, 12, 25), 30, (0, 0)),
        (1.3, World(), (3, 6), 60, (45, 60)),
        (1.5, World(), (3,), 39, (30, 39)),
    ],
)
def test_rollouts_stop_as_often_as_stated(
    change: float, world: World, waves: tuple[int, ...], rollouts: int, stopped: tuple[int, int]
) -> None:
    rng = np.random.default_rng(17)
    trial = Trial(waves=waves, controls=40)
    stops = [
        stop for _ in range(rollouts // 3) for stop in run(world, trial, math.log(change), rng)
    ]
    assert stopped[0] <= sum(one is not None for one in stops) <= stopped[1]


def test_a_release_at_the_limit_of_all_gates_is_not_stopped() -> None:
    assert measure_whole(0, classes=1) == ""
