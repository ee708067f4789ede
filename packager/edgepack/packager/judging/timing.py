"""Models timed against each other, turn by turn."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from edgepack.packager.samples.sequence import Feeds

MOST_SAMPLES = 8
"""So many different inputs are fed in turn."""

_TIMED_S = 1.0
FEWEST_ROUNDS = 7
"""A median of this many turns tells 10 % more from equal; a slow model gets little more."""


def interleaved_medians_ms(
    runs: Sequence[Callable[[Feeds], Any]], feeds: Sequence[Feeds], *, rounds: int
) -> tuple[float, ...]:
    """Medians of models' latencies, measured turn by turn so that noise hits all.

    Args:
        runs: The models.
        feeds: Inputs by name, at least one; fed in order, again from the start when they end.
        rounds: Inferences of each at the most; fewer, but 7, where they take longer than 1 s.

    Returns:
        Milliseconds, one a model.
    """
    for run in runs:
        run(feeds[0])
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + _TIMED_S
    for number in range(rounds):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run(feeds[number % len(feeds)])
            taken.append((time.perf_counter() - start) * 1e3)
        if time.perf_counter() > end and number + 1 >= FEWEST_ROUNDS:
            break
    return tuple(map(statistics.median, times))
