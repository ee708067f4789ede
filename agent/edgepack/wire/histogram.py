"""Latency histograms that can be merged: over threads, processes, windows and devices.

Percentiles of percentiles are meaningless, so nobody sends percentiles: a device sends counts in
logarithmic buckets, and a reader merges histograms and reads the percentile from the sum. A
bucket's bounds differ by 5 %, so a percentile is off by at most 2.5 %.
"""

import math
import threading
from collections.abc import Iterable

from edgepack.errors import TransferError
from edgepack.wire.telemetry import Histogram

GROWTH = 1.05
"""Ratio of a bucket's bounds; the error of a percentile is (growth - 1) / (growth + 1)."""

LEAST_MS = 1e-6
"""A nanosecond: what a clock that did not move is counted as."""

_INDEX_LIMIT = 2000
"""Beyond any latency (1.05**2000 ms is 10**31 years); indices of a peer are held to it."""
_MAX_BUCKETS = 1000
"""Latencies whose greatest is 10**21 times the least; a histogram of a peer has no more."""
_MAX_COUNT = 2**53


class LatencyRecorder:
    """Counts latencies at each inference; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[int, int] = {}
        self._count = 0
        self._sum_ms = 0.0
        self._min_ms = math.inf
        self._max_ms = 0.0

    def record(self, latency_ms: float) -> None:
        """Count an inference.

        Args:
            latency_ms: Its duration, milliseconds.

        Raises:
            ValueError: The latency is negative, infinite or not a number.
        """
        if not math.isfinite(latency_ms) or latency_ms < 0:
            raise ValueError(f"a latency is a finite number of milliseconds, not {latency_ms}")
        latency_ms = max(latency_ms, LEAST_MS)
        index = bucket_of(latency_ms, GROWTH)
        with self._lock:
            self._counts[index] = self._counts.get(index, 0) + 1
            self._count += 1
            self._sum_ms += latency_ms
            self._min_ms = min(self._min_ms, latency_ms)
            self._max_ms = max(self._max_ms, latency_ms)

    def snapshot(self) -> Histogram:
        """Return the counts since the recorder was created, as an unchanging copy."""
        with self._lock:
            return Histogram(
                growth=GROWTH,
                counts=dict(sorted(self._counts.items())),
                count=self._count,
                sum_ms=self._sum_ms,
                min_ms=self._min_ms if self._count else 0.0,
                max_ms=self._max_ms,
            )


def bucket_of(latency_ms: float, growth: float) -> int:
    """Index i of the bucket with `growth**(i-1) < latency_ms <= growth**i`."""
    index = math.ceil(math.log(latency_ms) / math.log(growth))
    # The logarithm rounds: at a bucket's bound it may land one too high or too low.
    while latency_ms <= growth ** (index - 1):
        index -= 1
    while latency_ms > growth**index:
        index += 1
    return index


def empty() -> Histogram:
    """Return a histogram of no inference."""
    return Histogram(growth=GROWTH, counts={}, count=0, sum_ms=0.0, min_ms=0.0, max_ms=0.0)


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """Return the histogram of all inferences of all given histograms, in any order.

    Raises:
        ValueError: The bucket growth of the histograms differs, so the counts cannot be added.
    """
    filled = [histogram for histogram in histograms if histogram.count]
    if not filled:
        return empty()
    growths = sorted({histogram.growth for histogram in filled})
    if len(growths) > 1:
        raise ValueError(f"histograms of different growth cannot be merged: {growths}")
    counts: dict[int, int] = {}
    for histogram in filled:
        for index, number in histogram.counts.items():
            counts[index] = counts.get(index, 0) + number
    return Histogram(
        growth=growths[0],
        counts=dict(sorted(counts.items())),
        count=sum(histogram.count for histogram in filled),
        sum_ms=math.fsum(histogram.sum_ms for histogram in filled),
        min_ms=min(histogram.min_ms for histogram in filled),
        max_ms=max(histogram.max_ms for histogram in filled),
    )


def merge_present(histograms: Iterable[Histogram | None]) -> Histogram | None:
    """Return the histogram of all that is present; None without any inference.

    Raises:
        ValueError: See `merge`.
    """
    whole = merge(one for one in histograms if one is not None)
    return whole if whole.count else None


def subtract(later: Histogram, earlier: Histogram) -> Histogram:
    """Return the inferences that `later` has beyond `earlier`, both snapshots of the same recorder.

    Least and greatest latency of the difference are not known exactly; both come from `later`,
    narrowed to the bounds of the buckets that grew.

    Raises:
        ValueError: `earlier` is not an earlier snapshot of the same recorder.
    """
    if not earlier.count:
        return later
    counts = {i: n - earlier.counts.get(i, 0) for i, n in later.counts.items()}
    shrunk = earlier.counts.keys() - later.counts.keys() or any(n < 0 for n in counts.values())
    if later.growth != earlier.growth or shrunk:
        raise ValueError("the earlier histogram is not a snapshot of the same recorder")
    counts = {i: n for i, n in counts.items() if n}
    if not counts:
        return empty()
    growth = later.growth
    return Histogram(
        growth=growth,
        counts=counts,
        count=later.count - earlier.count,
        sum_ms=max(0.0, later.sum_ms - earlier.sum_ms),
        min_ms=max(later.min_ms, growth ** (min(counts) - 1)),
        max_ms=min(later.max_ms, growth ** max(counts)),
    )


def percentile(histogram: Histogram, percent: float) -> float:
    """Return the latency that `percent` of the inferences did not exceed (nearest rank).

    Args:
        histogram: Histogram of at least 1 inference; merge first.
        percent: 0 … 100, e.g. 95.

    Returns:
        Milliseconds, within 2.5 % of the exact value at growth 1.05; 0 and 100 are exact.

    Raises:
        ValueError: The histogram is empty, or `percent` is out of range.
    """
    if not histogram.count:
        raise ValueError("an empty histogram has no percentiles")
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile is asked for as 0 … 100, not {percent}")
    if percent == 0:
        return histogram.min_ms
    if percent == 100:
        return histogram.max_ms
    # The product is rounded first: 0.07 * 100 must not become the eighth of 100 inferences.
    rank = max(1, math.ceil(round(percent / 100 * histogram.count, 9)))
    seen = 0
    for index in sorted(histogram.counts):
        seen += histogram.counts[index]
        if seen >= rank:
            upper = histogram.growth**index
            middle = 2 * upper / (histogram.growth + 1)
            return min(max(middle, histogram.min_ms), histogram.max_ms)
    raise ValueError("the histogram's counts do not add up to its count")


def mean(histogram: Histogram) -> float:
    """Return mean latency, milliseconds; raises `ValueError` when the histogram is empty."""
    if not histogram.count:
        raise ValueError("an empty histogram has no mean")
    return histogram.sum_ms / histogram.count


def check(histogram: Histogram) -> Histogram:
    """Judge a histogram that came from elsewhere.

    Returns:
        The same histogram.

    Raises:
        TransferError: Its numbers contradict each other, and would spoil a merge.
    """
    finite = all(
        math.isfinite(number) and number >= 0
        for number in (histogram.sum_ms, histogram.min_ms, histogram.max_ms)
    )
    problem = ""
    if histogram.growth != GROWTH:
        problem = f"its growth is {histogram.growth}, not {GROWTH}"
    elif len(histogram.counts) > _MAX_BUCKETS or histogram.count > _MAX_COUNT:
        problem = f"it counts more than {_MAX_COUNT} inferences or {_MAX_BUCKETS} buckets"
    elif any(number <= 0 for number in histogram.counts.values()):
        problem = "a bucket's count is not positive"
    elif any(abs(index) > _INDEX_LIMIT for index in histogram.counts):
        problem = f"a bucket's index is beyond {_INDEX_LIMIT}"
    elif sum(histogram.counts.values()) != histogram.count:
        problem = "its counts do not add up to its count"
    elif not finite or histogram.min_ms > histogram.max_ms:
        problem = "its sum or its extremes are impossible"
    if problem:
        raise TransferError(f"malformed histogram: {problem}")
    return histogram
