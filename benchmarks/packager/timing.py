"""Latencies of models that take turns, so that noise hits all alike."""

import time
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.tasks.task import Feeds, Run

_FEWEST_ROUNDS = 15
_MOST_ROUNDS = 400
TIMED_SAMPLES = 8
"""Samples that are enough for timing."""


def medians_in_turn_ms(
    runs: Mapping[str, Run], samples: Sequence[Feeds], *, timed_s: float
) -> dict[str, float]:
    """Return medians of the models' latencies, A B C A B C, milliseconds by name.

    Args:
        runs: The models by name.
        samples: Fed in order, again from the start at the end.
        timed_s: Duration, seconds; every model has 15 turns in any case.
    """
    for run in runs.values():
        for feeds in samples[:3]:
            run(feeds)
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + timed_s
    for number in range(_MOST_ROUNDS):
        for name, run in runs.items():
            start = time.perf_counter()
            run(samples[number % len(samples)])
            times[name].append((time.perf_counter() - start) * 1e3)
        if time.perf_counter() > end and number >= _FEWEST_ROUNDS:
            break
    return {name: float(np.median(taken)) for name, taken in times.items()}
