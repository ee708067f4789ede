"""Speedup of a candidate against the float model, with a confidence interval.

Both models run in pairs. A race is a pair of sessions: its result is the median of the log ratios
of its pairs, which a single interrupted inference does not move. Sessions differ too (where memory
lies, the clock of the CPU), so races are repeated in sessions of their own, and the interval is
that of the mean of their results. Races continue until the interval is on a single side of the
required speedup, or `_LOOKS` are used up: then the result is undecided.
"""

import math
import statistics
from collections.abc import Callable
from typing import Literal

import msgspec

from edgepack.packager.runtime.timing import Turns
from edgepack.text import counted

Outcome = Literal["faster", "not faster", "undecided"]
"""Against the speedup that is asked for."""

_LOOKS = (3, 5, 9)
"""After so many races the interval is looked at. On 2 CPUs with 13 programs waiting for them, three
quantized text models (0.65, 1.4 and 1.5 times as fast) were told from 1.05 by the second look."""

_T_QUANTILES = {3: 9.925, 5: 4.604, 9: 3.355}
"""Student's t, .995, at 2, 4 and 8 degrees of freedom: of three looks at most 1.5 % err."""

_LEAST_SPREAD = 0.02
"""Standard deviation of a race's log ratio at the least: three races may agree by chance. On the
machine above it was .02 to .09 by CPU time, and .2 to .9 by wall time."""


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """The result of races.

    Attributes:
        latency_ms, float_latency_ms: Medians, of the middle race.
        ratio: How many times as fast as the float model the candidate is.
        low, high: The 99 % interval of `ratio`; 0 and infinity after too few races.
        races: How many.
        outcome: `ratio` against the speedup that was asked for.
        on_boards: By the name of a board `latency_ms` and `float_latency_ms` there.
    """

    latency_ms: float
    float_latency_ms: float
    ratio: float
    low: float
    high: float
    races: int
    outcome: Outcome
    on_boards: dict[str, tuple[float, float]] = {}

    def describe(self, baseline: str = "the float model") -> str:
        """Return the interval in words, against a model that is named."""
        races = counted(self.races, "race")
        if not self.low:
            return f"{self.ratio:.2f} times as fast as {baseline} in {races}"
        return (
            f"{self.low:.2f} to {self.high:.2f} times as fast as {baseline} "
            f"(99% interval of {races})"
        )


def measure_speedup(
    race: Callable[[], Turns], asked: float | None, may_go_on: Callable[[], bool] = lambda: True
) -> Speedup:
    """Return race a candidate against the float model until the speedup asked for is decided.

    Args:
        race: Runs both in sessions of their own; the candidate's times are the first row.
        asked: The least speedup; None for any, with a single race.
        may_go_on: Called before each race after the first: whether there is time for another race.
    """
    races = [race()]
    while asked is not None and len(races) < _LOOKS[-1] and may_go_on():
        if len(races) in _LOOKS and _compare(races, asked).outcome != "undecided":
            break
        races.append(race())
    return _compare(races, asked)


def _compare(races: list[Turns], asked: float | None) -> Speedup:
    results = [_log_ratio(turns) for turns in races]
    middle = races[results.index(statistics.median_low(results))].medians_ms
    mean, low, high = statistics.fmean(results), 0.0, math.inf
    count = max((look for look in _LOOKS if look <= len(results)), default=0)
    if count:
        used = results[:count]
        mean = statistics.fmean(used)
        spread = max(_LEAST_SPREAD, statistics.stdev(used))
        reach = _T_QUANTILES[count] * spread / math.sqrt(count)
        low, high = math.exp(mean - reach), math.exp(mean + reach)
    outcome: Outcome = "undecided"
    if asked is None or low >= asked:
        outcome = "faster"
    elif high < asked:
        outcome = "not faster"
    return Speedup(
        latency_ms=middle[0],
        float_latency_ms=middle[1],
        ratio=math.exp(mean),
        low=low,
        high=high,
        races=len(races),
        outcome=outcome,
    )


def _log_ratio(turns: Turns) -> float:
    """Return the median over pairs of log(float time / candidate's time)."""
    candidate, float_model = turns.times_s
    tiny = 1e-9  # a clock may stand still for an empty model
    return statistics.median(
        math.log(max(theirs, tiny) / max(own, tiny))
        for own, theirs in zip(candidate, float_model, strict=True)
    )
