"""Slowness: is a release grossly slower than the previous release, or than itself before? Pure.

A single device cannot condemn a release: the device may be odd. But a device can detect that
inferences became twice as slow, and leave the release. A burst of load does not look like this: all
of several intervals in a row must be slow, and slower than the latency ever varied before.
"""

import math
from collections.abc import Sequence

import msgspec

from edgepack.agent.telemetry.pace import Interval, Pace, typical_ms
from edgepack.agent.watch.observed import DOUBTFUL, FINE, Observed, Verdict
from edgepack.text import counted

INTERVALS = 5
"""Slow intervals in a row that prove it. Half of it goes back for a backup of two minutes, twice of
it serves a slow release for ten minutes."""
LONGEST = 10
"""Intervals for which a soak waits when it is doubtful: ten minutes, when each is a minute long."""
GROSS, SHORT_INTERVALS = 10.0, 3
"""A release as many times slower than before is left after so many short intervals: half a minute.
No burst of the simulated months reached it."""
SHORTER = 6
"""Short intervals in an interval."""
FEWEST_BEFORE = 60
"""Inferences of the previous release: ten of them are slower than the latency that counts."""
FEWEST_NOW = 5
"""Inferences of the release that soaks: with fewer, nothing is left but the slowest two."""
_SPREAD, _WEIGHT = 0.074, 30
"""Spread (standard deviation of the logarithm) of a device's latency from interval to interval that
is assumed before it is known, and the intervals that the assumption counts as."""
_SIGMAS = 3.0


def judge_previous(seen: Observed) -> Verdict:
    """Judge the pace of a release that soaks against the previous release on this device.

    Of a release that writes texts, the time to the first token is judged, too. The first token's
    time depends on the prompt, which the application chooses, so a committed release is not judged
    by it against its own past.
    """
    verdict = _judge(seen, "inferences take")
    before, now = seen.before.first_tokens, seen.now.first_tokens
    if verdict.answer == "proven" or before is None or now is None:
        return verdict
    first = msgspec.structs.replace(
        seen, before=before, now=now, recent=seen.recent_first_tokens, is_awaited=False
    )
    of_first = _judge(first, "first tokens of texts take")
    return verdict if of_first == FINE else of_first


def _judge(seen: Observed, subject: str) -> Verdict:
    """Judge one of the paces of a release that soaks.

    1. Without enough inferences of the previous release there is nothing to compare with.
    2. The release is slow when all of the last intervals are. At the end of the time, two are
       enough. A gross slowdown is proven by short intervals, so within a minute.
    3. The release is doubtful if the last interval, or the current interval, is slow; or if
       applications may still come.
    """
    before, now = seen.before, seen.now
    # 1.
    is_missed = now.count < FEWEST_NOW and seen.is_awaited
    if before.latency.count < FEWEST_BEFORE:
        return DOUBTFUL if is_missed else FINE
    # 2.
    for intervals, needed, factor in (
        (seen.recent, SHORT_INTERVALS, GROSS),
        (now.intervals, 2 if seen.is_last else INTERVALS, seen.slowdown),
    ):
        limit = _limit(before, max(seen.slowdown, factor))
        ratios = [one.latency_ms / _usual_ms(before, one.count) for one in intervals]
        slow_in_a_row = _count_slow(ratios, limit)
        if slow_in_a_row >= needed:
            slow = intervals[-slow_in_a_row:]
            return _slow(slow, ratios, limit, f"with {seen.title_before}", subject)
    # 3.
    current = now.current
    is_slow_now = current.count >= FEWEST_NOW and (
        typical_ms(current, current.count) >= limit * _usual_ms(before, current.count)
    )
    return DOUBTFUL if slow_in_a_row or is_slow_now or is_missed else FINE


def judge_past(seen: Observed) -> Verdict:
    """Judge the pace of a committed release against its own past hour on this device.

    All intervals since a point in time must be slow, compared with the intervals before. Any point
    may be the right one, since reports wait while another model is updated or variants are probed.
    A gross slowdown is proven by short intervals, so within a minute.
    """
    intervals, recent = seen.before.intervals, seen.recent
    newest = [one.latency_ms for one in (*intervals[-1:], *recent[-1:])]
    fastest_ms = min((one.latency_ms for one in intervals), default=0.0)
    if max(newest, default=0.0) < seen.slowdown * fastest_ms:
        return FINE  # As most of the time: nothing below could be proven.
    for first in range(len(intervals) - 1, 0, -1):
        past = msgspec.structs.replace(seen.before, intervals=intervals[:first])
        if sum(one.count for one in past.intervals) < FEWEST_BEFORE:
            break
        least_ms = _middle(past).latency_ms  # The histogram has the judged intervals, too.
        later = intervals[first:]
        for slow, others, needed, factor in (
            (recent, later[1:], SHORT_INTERVALS, GROSS),
            (later, (), INTERVALS, seen.slowdown),
        ):
            judged, factor = (*others, *slow), max(seen.slowdown, factor)
            if len(slow) < needed or min(one.latency_ms for one in judged) < factor * least_ms:
                continue
            limit = _limit(past, factor)
            ratios = [one.latency_ms / max(least_ms, _usual_ms(past, one.count)) for one in judged]
            if min(ratios) >= limit:
                return _slow(slow, ratios, limit, "before")
    return FINE


def continue_past(left: Pace, own: Pace, allowed: float) -> Pace:
    """Return the past of a variant that took over from a variant of the same release.

    The slow intervals for which the variant was left are no part of the past.

    Args:
        left: Pace of the variant that was left for slowness.
        own: Pace of the variant that took over.
        allowed: Tolerated ratio of latencies.
    """
    return msgspec.structs.replace(
        left, intervals=(*_before_slowness(left, allowed), *own.intervals)
    )


def slowdown_of(past: Pace, now_ms: float, allowed: float) -> float:
    """Return how many times as long as usual inferences take; 1 without a past.

    Args:
        past: Pace until now, with the slow intervals at its end.
        now_ms: Latency of now, milliseconds.
        allowed: Tolerated ratio of latencies.
    """
    usual = sorted(one.latency_ms for one in _before_slowness(past, allowed))
    return now_ms / usual[len(usual) // 2] if usual else 1.0


def _before_slowness(past: Pace, allowed: float) -> tuple[Interval, ...]:
    """Return the intervals without the slow intervals at their end."""
    least_ms = min((one.latency_ms for one in past.intervals), default=0.0)
    ratios = [one.latency_ms / least_ms for one in past.intervals]
    return past.intervals[: len(ratios) - _count_slow(ratios, allowed)]


def _count_slow(ratios: Sequence[float], limit: float) -> int:
    """Return how many of the last ratios in a row reach the limit."""
    return next((n for n, ratio in enumerate(reversed(ratios)) if ratio < limit), len(ratios))


def _slow(
    slow: Sequence[Interval],
    ratios: Sequence[float],
    limit: float,
    than: str,
    subject: str = "inferences take",
) -> Verdict:
    inferences, least = sum(one.count for one in slow), min(ratios[-len(slow) :])
    return Verdict(
        "proven",
        f"{subject} {least:.1f} times as long as {than} in each of the last "
        f"{counted(len(slow), 'interval')} ({slow[-1].latency_ms:.3g} ms, "
        f"{counted(inferences, 'inference')}); {limit:.1f} times is let pass",
    )


def _limit(before: Pace, allowed: float) -> float:
    """Return the tolerated ratio: the allowed ratio, or more if latencies varied more before."""
    return max(allowed, math.exp(_SIGMAS * _spread(before)))


def _usual_ms(before: Pace, count: int) -> float:
    """Return the usual latency of an interval with `count` inferences: the median, free of bursts.

    The percentile that an interval is read at depends on its inferences, so the median interval is
    converted to that of `count`.
    """
    middle, usual = _middle(before), before.latency
    return middle.latency_ms * typical_ms(usual, count) / typical_ms(usual, middle.count)


def _middle(before: Pace) -> Interval:
    return sorted(before.intervals, key=lambda one: one.latency_ms)[len(before.intervals) // 2]


def _spread(before: Pace) -> float:
    """Return the spread between intervals, moderated by the assumed spread of any device."""
    logs = [math.log(one.latency_ms) for one in before.intervals]
    mean = math.fsum(logs) / len(logs)
    squares = math.fsum((one - mean) ** 2 for one in logs)
    return math.sqrt((_WEIGHT * _SPREAD**2 + squares) / (_WEIGHT + len(logs) - 1))
