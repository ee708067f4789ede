"""Simulates rollouts and evaluates them with the code of the gates: `python -m benchmarks.gates`.

Prints tables, and writes JSON and a page. Each scenario has a seed of its own.
"""

import argparse
import math
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.gates.page import Curve, Results, write_page
from benchmarks.gates.world import FIRST_LOOK, Trial, World, run, run_shares, typical
from edgepack.fleet.database.measurements import LOOKS
from edgepack.fleet.database.measures import PAIR_BEFORE, scaled
from edgepack.fleet.documents.gates import BY_NAME, Gate
from edgepack.fleet.rollouts.gates import WAVE_END
from edgepack.fleet.rollouts.statistics import find_least_change

DRAWS = 2
"""Number of the draws. No rule was chosen on them: a change of the rules gets the next number."""
LIMIT = BY_NAME["p95"].threshold
HEAT = math.log(1.2)
ALONE = Trial(waves=(1,), wave_values=FIRST_LOOK)
SLOWER = World(odd_effect=0.04, odd_more=0.3)
NOISY, LEARNT = World(scale=2.0, effect=0.02, odd=0.025), Trial(noise=0.11)
TIMED = ("p95", "p99", "memory", "temperature")


class Scenario(NamedTuple):
    """Rollouts in a world with one gate; `change` is the true effect, as a ratio."""

    title: str
    change: float
    world: World = World()
    trial: Trial = Trial()
    share: float = 1.0
    """Share of the requested rollouts."""


SCENARIOS = (
    Scenario("at the limit", LIMIT, share=4.0),
    Scenario("1.08 times", 1.08, share=2.0),
    Scenario("1.2 times", 1.2),
    Scenario("1.3 times", 1.3),
    Scenario("1.5 times", 1.5, share=0.5),
    Scenario("heat of 20 %, release unchanged", 1.0, World(heat=HEAT), share=2.0),
    Scenario("heat of 20 %, at the limit", LIMIT, World(heat=HEAT), share=2.0),
    Scenario("weather by day (.1), at the limit", LIMIT, World(weather=0.1), share=2.0),
    Scenario("odd devices .3 slower, others at the limit", LIMIT, SLOWER, share=2.0),
    Scenario("odd devices .3 slower, others 1.3 times", 1.3, SLOWER),
    Scenario("odd devices .3 slower, others 1.2 times", 1.2, SLOWER),
    Scenario("effects differ by .10, at the limit", LIMIT, World(effect=0.10), share=2.0),
    Scenario("effects differ by .10, 1.3 times", 1.3, World(effect=0.10)),
    Scenario(
        "noise twice the assumed, at the limit", LIMIT, World(scale=2.0, odd=0.025), share=2.0
    ),
    Scenario("noise twice, learnt by the fleet, at the limit", LIMIT, NOISY, LEARNT, share=2.0),
    Scenario("noise twice, learnt by the fleet, 1.3 times", 1.3, NOISY, LEARNT),
    Scenario("no controls, at the limit", LIMIT, trial=Trial(controls=0), share=2.0),
    Scenario("no controls, heat, unchanged", 1.0, World(heat=HEAT), Trial(controls=0), share=2.0),
)
CANARIES = (
    Scenario("canary of one, 10 minutes: at the limit", LIMIT, trial=ALONE, share=4.0),
    *(
        Scenario(f"canary of one, 10 minutes: {change} times", change, trial=ALONE, share=2.0)
        for change in (1.3, 1.5, 2.0)
    ),
)


def measure(scenario: Scenario, rollouts: int) -> Curve:
    """Return the share of rollouts that are stopped in a class, by devices with the release."""
    rng = np.random.default_rng((DRAWS, zlib.crc32(scenario.title.encode())))
    count = max(1, round(rollouts * scenario.share))
    change = math.log(scenario.change)
    stops = [run(scenario.world, scenario.trial, change, rng)[0] for _ in range(count)]
    return _curve(scenario.title, stops, scenario.trial.waves)


def _curve(title: str, stops: Sequence[int | None], steps: Sequence[int]) -> Curve:
    shares = {
        str(step): sum(stop is not None and stop <= step for stop in stops) / len(stops)
        for step in steps
    }
    return Curve(title=title, rollouts=len(stops), stopped_by=shares)


def measure_whole(seed: int, classes: int = 3, *, is_harder: bool = False) -> str:
    """Simulate a rollout whose release is at the limit of all gates, on some hardware classes.

    Args:
        seed: Seed of the rollout.
        classes: Number of hardware classes.
        is_harder: The effects differ by twice what each gate assumes, and weather changes by day.

    Returns:
        The gate that stopped the rollout first; "" for none.
    """
    rng = np.random.default_rng((DRAWS, is_harder, seed))
    for name in TIMED:
        gate = BY_NAME[name]
        limit = scaled(name, gate.threshold)
        if any(run(_world_of(gate, is_harder), Trial(gate=name, classes=classes), limit, rng)):
            return name
    for _ in range(classes):
        for title, draw in SHARES.items():
            gate_name, before, now, inferences = draw(rng, True)
            trial = Trial(gate=gate_name, classes=classes)
            if run_shares(trial, rng, before, now, inferences) is not None:
                return title
    return ""


def _world_of(gate: Gate, is_harder: bool) -> World:
    """Return the world of p95, scaled by the noise and the effect that a gate assumes."""
    p95, plain = BY_NAME["p95"], World()
    noise = gate.noise / p95.noise
    ratio = gate.effect / p95.effect / noise
    return World(
        scale=noise,
        effect=ratio * (2 * p95.effect if is_harder else plain.effect),
        odd_effect=ratio * plain.odd_effect,
        weather=0.1 if is_harder else 0.0,
    )


def _draw_errors(
    rng: np.random.Generator, at_limit: bool
) -> tuple[str, np.ndarray, np.ndarray, int]:
    before = rng.beta(0.5, 199.5, 50)
    more = rng.beta(0.5, 49.5, 50) if at_limit else np.full(50, 0.2)
    return "errors", before, np.minimum(1.0, before + more), BY_NAME["errors"].fewest


def _draw_shadow(
    rng: np.random.Generator, at_limit: bool
) -> tuple[str, np.ndarray, np.ndarray, int]:
    now = rng.beta(0.5, 9.5, 50) if at_limit else np.full(50, 0.4)
    return "shadow", np.zeros(50), now, BY_NAME["shadow"].fewest


def _draw_fallbacks(
    rng: np.random.Generator, at_limit: bool
) -> tuple[str, np.ndarray, np.ndarray, int]:
    return "fallbacks", np.zeros(50), np.full(50, 0.1 if at_limit else 0.6), 1


Draw = Callable[[np.random.Generator, bool], tuple[str, np.ndarray, np.ndarray, int]]
SHARES: dict[str, Draw] = {
    "errors, devices differ": _draw_errors,
    "shadow, devices differ": _draw_shadow,
    "fallbacks": _draw_fallbacks,
}
WORSE = {
    "errors, devices differ": "20 points more errors",
    "shadow, devices differ": "40 % disagree",
    "fallbacks": "60 % of devices fall back",
}


def measure_shares(title: str, rollouts: int) -> list[Curve]:
    """Return the stopped share of rollouts at the limit, and of a bad release, by devices."""
    rng = np.random.default_rng((DRAWS, zlib.crc32(title.encode())))
    curves = []
    for at_limit in (True, False):
        stops = []
        for _ in range(rollouts if at_limit else max(1, rollouts // 4)):
            name, before, now, inferences = SHARES[title](rng, at_limit)
            stops.append(run_shares(Trial(gate=name), rng, before, now, inferences))
        words = "at the limit" if at_limit else WORSE[title]
        curves.append(_curve(f"{title}: {words}", stops, (3, 6, 12, 25, 50)))
    return curves


def measure_noise() -> dict[str, float]:
    """Return the standard deviation of a device's number without a change, by minutes."""
    rng = np.random.default_rng(7)
    longest = FIRST_LOOK * LOOKS[-1]
    values = World(common_day=0.0).draw(rng, 1000, PAIR_BEFORE + longest)
    before = typical(values[:, :PAIR_BEFORE])
    return {
        str(5 * FIRST_LOOK * look): float(
            np.std(typical(values[:, PAIR_BEFORE : PAIR_BEFORE + FIRST_LOOK * look]) - before)
        )
        for look in LOOKS
    }


def expect() -> dict[str, dict[str, float]]:
    """Return the least ratio that 9 of 10 rollouts find, by controls and devices."""
    gate, plan = BY_NAME["p95"], Trial().plan
    return {
        str(controls): {
            str(devices): math.exp(
                find_least_change(
                    math.log(LIMIT),
                    devices,
                    noise=gate.noise,
                    effect=gate.effect,
                    controls=controls,
                    alpha=plan.alpha(gate.weight) * plan.share([(1, WAVE_END)]),
                )
            )
            for devices in (1, 3, 6, 12, 25, 50)
        }
        for controls in (40, 10, 5)
    }


def main() -> None:
    """Run all simulations, print the tables, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gates", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=150, help="of a scenario")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, help="folder of gates.json and README.md")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.workers) as pool:
        curves = [pool.submit(measure, one, given.rollouts) for one in (*SCENARIOS, *CANARIES)]
        shares = [pool.submit(measure_shares, title, given.rollouts) for title in SHARES]
        whole = list(pool.map(measure_whole, range(2 * given.rollouts), chunksize=10))
        harder = list(
            pool.map(
                partial(measure_whole, is_harder=True), range(2 * given.rollouts), chunksize=10
            )
        )
        results = Results(
            curves=tuple(one.result() for one in curves),
            shares=tuple(curve for one in shares for curve in one.result()),
            whole_rollouts=len(whole),
            whole_stopped={name: whole.count(name) for name in sorted(set(whole) - {""})},
            harder_rollouts=len(harder),
            harder_stopped={name: harder.count(name) for name in sorted(set(harder) - {""})},
            noise_by_minutes=measure_noise(),
            finds=expect(),
        )
    page = write_page(results)
    print(page)
    if given.output:
        given.output.mkdir(parents=True, exist_ok=True)
        (given.output / "README.md").write_text(page)
        text = msgspec.json.format(msgspec.json.encode(results), indent=1)
        (given.output / "gates.json").write_bytes(text + b"\n")


if __name__ == "__main__":
    main()
