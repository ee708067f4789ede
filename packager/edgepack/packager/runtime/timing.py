"""Models timed against each other, turn by turn."""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from edgepack.packager.tensors.sequence import Feeds

MOST_SAMPLES = 8
"""So many different inputs are fed in turn."""

_TIMED_S = 0.3
_LEAST_TIMED_S = 0.05
"""So long are the smallest models timed: 30 inferences of .1 ms are over before a CPU's clock has
settled, and which of two is faster is a coin flip."""

FEWEST_ROUNDS = 7
"""A median of this many turns tells 10 % more from equal; a slow model gets little more."""

_PATIENCE_S = 1.0
"""So long is waited on a busy machine for turns that nobody interrupted."""

_OWN_SHARE = 0.9
"""Of an inference's time; one on which the thread computed less was interrupted. With eight other
programs on two CPUs one model took 1.1 to 1.5 times the time of another by all turns, and 1.05 to
1.25, as on a quiet machine, by those that nobody interrupted."""


def interleaved_medians_ms(
    runs: Sequence[Callable[[Feeds], Any]], feeds: Sequence[Feeds], *, rounds: int
) -> tuple[float, ...]:
    """Medians of models' latencies, measured turn by turn so that noise hits all.

    Turns in which the thread had to wait do not count, where enough others are left. What computes
    on other threads, or not on the CPU, always has it wait: all turns count then.

    Args:
        runs: The models.
        feeds: Inputs by name, at least one; fed in order, again from the start when they end.
        rounds: Inferences of each; fewer, but 7, where they take longer than 0.3 s, and more where
            they take less than 0.05 s, or are interrupted.

    Returns:
        Milliseconds, one a model.
    """
    for run in runs:
        run(feeds[0])
    all_ms: list[list[float]] = [[] for _ in runs]
    calm_ms: list[list[float]] = [[] for _ in runs]
    began = time.perf_counter()
    for number in itertools.count():
        for run, every, calm in zip(runs, all_ms, calm_ms, strict=True):
            own, start = time.thread_time(), time.perf_counter()
            run(feeds[number % len(feeds)])
            taken_s, own_s = time.perf_counter() - start, time.thread_time() - own
            every.append(taken_s * 1e3)
            if own_s >= _OWN_SHARE * taken_s:
                calm.append(taken_s * 1e3)
        passed_s = time.perf_counter() - began
        least = FEWEST_ROUNDS if passed_s > _TIMED_S else rounds
        if number + 1 < least or passed_s <= _LEAST_TIMED_S:
            continue
        fewest_calm = min(map(len, calm_ms))
        if fewest_calm >= FEWEST_ROUNDS or not any(calm_ms) or passed_s > _PATIENCE_S:
            break
    counted = calm_ms if fewest_calm >= FEWEST_ROUNDS else all_ms
    return tuple(map(statistics.median, counted))
