"""Models timed against each other, turn by turn."""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from edgepack.packager.samples.sequence import Feeds

MOST_SAMPLES = 8
"""So many different inputs are fed in turn."""

_TIMED_S = 0.3
_LEAST_TIMED_S = 0.05
"""So long are the smallest models timed: 30 inferences of .1 ms are over before a CPU's clock has
settled, and which of two is faster is a coin flip."""

FEWEST_ROUNDS = 7
"""A median of this many turns tells 10 % more from equal; a slow model gets little more."""


def interleaved_medians_ms(
    runs: Sequence[Callable[[Feeds], Any]], feeds: Sequence[Feeds], *, rounds: int
) -> tuple[float, ...]:
    """Medians of models' latencies, measured turn by turn so that noise hits all.

    Args:
        runs: The models.
        feeds: Inputs by name, at least one; fed in order, again from the start when they end.
        rounds: Inferences of each; fewer, but 7, where they take longer than 0.3 s, and more where
            they take less than 0.05 s.

    Returns:
        Milliseconds, one a model.
    """
    for run in runs:
        run(feeds[0])
    times: list[list[float]] = [[] for _ in runs]
    began = time.perf_counter()
    for number in itertools.count():
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run(feeds[number % len(feeds)])
            taken.append((time.perf_counter() - start) * 1e3)
        passed_s = time.perf_counter() - began
        least = FEWEST_ROUNDS if passed_s > _TIMED_S else rounds
        if number + 1 >= least and passed_s > _LEAST_TIMED_S:
            break
    return tuple(map(statistics.median, times))
