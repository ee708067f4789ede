"""Groups of inferences in a latency report, and the dimensions of a group."""

from collections.abc import Iterable

from edgepack.fleet.documents.latency import LatencyPart, LatencyQuestion
from edgepack.wire.histogram import merge, percentile
from edgepack.wire.telemetry import Histogram

KEYS = ("model", "version", "variant", "provider", "hardware_class", "group", "rollout")

Key = tuple[bool, tuple[str, ...], int]
"""Whether it is simulated, what is told apart by the order of `KEYS`, and the start or 0."""


def part_of(
    key: Key, sums: Iterable[tuple[int, Histogram]], question: LatencyQuestion
) -> LatencyPart:
    """Return a group of a latency report.

    Args:
        key: Common dimensions of the sums.
        sums: Failures and latencies of each sum.
        question: The requested report.
    """
    is_simulator, words, at = key
    told = tuple(sums)
    whole = merge(histogram for _, histogram in told)
    p50_ms, p95_ms, p99_ms = (percentile(whole, q) if whole.count else 0.0 for q in (50, 95, 99))
    return LatencyPart(
        **dict(zip(KEYS, words, strict=True)),
        at=float(at) if "time" in question.by else None,
        is_simulator=is_simulator,
        inferences=whole.count,
        failures=sum(failures for failures, _ in told),
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        max_ms=whole.max_ms,
    )
