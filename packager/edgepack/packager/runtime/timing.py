"""Models timed against each other, turn by turn."""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from edgepack.packager.tensors.sequence import Feeds

MOST_SAMPLES = 8
"""So many different inputs are fed in turn."""

_TIMED_S = 0.3
_LEAST_TIMED_S = 0.05
"""So long are the smallest models timed: 30 inferences of .1 ms are over before a CPU's clock has
settled, and which of two is faster is a coin flip."""

FEWEST_ROUNDS = 7
"""A median of this many turns tells 10 % more from equal; a slow model gets little more."""

_COARSEST_S = 1e-5
"""A clock of thread time that ticks slower than this says nothing of a short inference."""


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """Times of models that ran in turns.

    Attributes:
        times_s: Seconds, a row for each model and a column for each turn: column i of all rows was
            measured together.
    """

    times_s: tuple[tuple[float, ...], ...]

    @property
    def medians_ms(self) -> tuple[float, ...]:
        """The median of each model, milliseconds."""
        return tuple(statistics.median(row) * 1e3 for row in self.times_s)


def has_thread_clock() -> bool:
    """Return whether this system measures the CPU time of a single thread finely enough."""
    return time.get_clock_info("thread_time").resolution <= _COARSEST_S


def take_turns(
    runs: Sequence[Callable[[Feeds], Any]],
    feeds: Sequence[Feeds],
    *,
    rounds: int,
    clock: Callable[[], float] | None = None,
    before_each: Callable[[], None] = lambda: None,
) -> Turns:
    """Run models in turns and measure each inference, so that noise hits all models alike.

    Every second turn goes through the models backwards: no model always follows the same model.

    Args:
        runs: The models.
        feeds: Inputs by name, at least 1; fed in order, again from the start at the end.
        rounds: Inferences of each; fewer, but 7, if slower than 0.3 s, and more if faster than 0.05
            s.
        clock: `time.thread_time` for models that compute on the calling thread alone: other
            programs do not count then, however busy the machine is. By default wall time.
        before_each: Called before each inference, untimed; its exception ends the turns.
    """
    clock = clock or time.perf_counter
    for run in runs:
        before_each()
        run(feeds[0])
    times_s: list[list[float]] = [[] for _ in runs]
    began = time.perf_counter()
    for number in itertools.count():
        turn = list(zip(runs, times_s, strict=True))
        for run, row in turn if number % 2 == 0 else reversed(turn):
            before_each()
            start = clock()
            run(feeds[number % len(feeds)])
            row.append(clock() - start)
        passed_s = time.perf_counter() - began
        least = FEWEST_ROUNDS if passed_s > _TIMED_S else rounds
        if number + 1 >= least and passed_s > _LEAST_TIMED_S:
            return Turns(times_s=tuple(map(tuple, times_s)))
    raise AssertionError("itertools.count does not end")
