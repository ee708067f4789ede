"""Slowdown: is a soaking release grossly slower than the previous release on this device? Pure.

A single device cannot condemn a release: the device may be odd. But a device can detect that
inferences became twice as slow, and return to the previous release. A burst of load does not look
like this: all of several intervals in a row must be slow, and slower than the previous release ever
varied.
"""

import math
from typing import Literal, NamedTuple

from edgepack.agent.telemetry.pace import Pace, typical_ms
from edgepack.text import counted

INTERVALS = 5
"""Slow intervals in a row that prove it. Half of it goes back for a backup of two minutes, twice of
it serves a slow release for ten minutes."""
LONGEST = 10
"""Intervals for which a soak waits when it is doubtful: ten minutes, when each is a minute long."""
FEWEST_BEFORE = 60
"""Inferences of the previous release: three are above their 95th percentile."""
FEWEST_NOW = 5
"""Inferences of the release that soaks: with fewer, nothing is left but the slowest two."""
_SPREAD, _WEIGHT = 0.074, 30
"""Spread (standard deviation of the logarithm) of a device's latency from interval to interval that
is assumed before it is known, and the intervals that the assumption counts as."""
_SIGMAS = 3.0

Answer = Literal["fine", "doubtful", "slow"]


class Verdict(NamedTuple):
    """The answer, and the reason with its numbers for `slow`."""

    answer: Answer
    because: str = ""


def judge(before: Pace, now: Pace, allowed: float, title: str, *, is_last: bool) -> Verdict:
    """Judge the pace of a release that soaks.

    1. Without enough inferences of the previous release there is nothing to compare with.
    2. The limit is the allowed slowdown, or more if the previous release varied more.
    3. The release is slow when all of the last intervals are. At the end of the time, two are
       enough.
    4. The release is doubtful if the last interval, or the current interval, is slow.

    Args:
        before: Of the previous release.
        now: Of this release since the switch.
        allowed: Ratio to the previous release that is tolerated, above 1.
        title: The previous release, in words.
        is_last: Whether the soak cannot wait any longer.
    """
    # 1.
    usual = before.latency
    if usual.count < FEWEST_BEFORE:
        return Verdict("fine")
    # 2.
    limit = max(allowed, math.exp(_SIGMAS * _spread(before)))
    # 3.
    ratios = [one.latency_ms / _usual_ms(before, one.count) for one in now.intervals]
    slow_in_a_row = 0
    for ratio in reversed(ratios):
        if ratio < limit:
            break
        slow_in_a_row += 1
    if slow_in_a_row >= (2 if is_last else INTERVALS):
        inferences = sum(one.count for one in now.intervals[-slow_in_a_row:])
        least = min(ratios[-slow_in_a_row:])
        return Verdict(
            "slow",
            f"inferences take {least:.1f} times as long as with {title} in each of the last "
            f"{counted(slow_in_a_row, 'interval')} ({now.intervals[-1].latency_ms:.3g} ms, "
            f"{counted(inferences, 'inference')}); {limit:.1f} times is let pass",
        )
    # 4.
    current = now.current
    is_slow_now = current.count >= FEWEST_NOW and (
        typical_ms(current, current.count) >= limit * _usual_ms(before, current.count)
    )
    is_doubtful = slow_in_a_row or is_slow_now
    return Verdict("doubtful" if is_doubtful else "fine")


def _usual_ms(before: Pace, count: int) -> float:
    """Return the usual latency of an interval with `count` inferences: the median, free of bursts.

    The percentile that an interval is read at depends on its inferences, so the median interval is
    converted to that of `count`.
    """
    middle = sorted(before.intervals, key=lambda one: one.latency_ms)[len(before.intervals) // 2]
    usual = before.latency
    return middle.latency_ms * typical_ms(usual, count) / typical_ms(usual, middle.count)


def _spread(before: Pace) -> float:
    """Return the spread between intervals, moderated by the assumed spread of any device."""
    logs = [math.log(one.latency_ms) for one in before.intervals]
    mean = math.fsum(logs) / len(logs)
    squares = math.fsum((one - mean) ** 2 for one in logs)
    return math.sqrt((_WEIGHT * _SPREAD**2 + squares) / (_WEIGHT + len(logs) - 1))
