"""Groups of inferences in a latency report, and the dimensions of a group."""

from collections.abc import Iterable

from edgepack.fleet.database.latency import Sum, add_sums
from edgepack.fleet.documents.latency import LatencyPart, LatencyQuestion, text_times
from edgepack.wire.histogram import percentile

KEYS = ("model", "version", "variant", "provider", "hardware_class", "group", "rollout")

Key = tuple[bool, tuple[str, ...], int]
"""Whether it is simulated, what is told apart by the order of `KEYS`, and the start or 0."""


def part_of(key: Key, sums: Iterable[Sum], question: LatencyQuestion) -> LatencyPart:
    """Return a group of a latency report.

    Args:
        key: Common dimensions of the sums.
        sums: Failures and latencies.
        question: The requested report.
    """
    is_simulator, words, at = key
    failures, whole, first_tokens = add_sums(sums)
    p50_ms, p95_ms, p99_ms = (percentile(whole, q) if whole.count else 0.0 for q in (50, 95, 99))
    return LatencyPart(
        **dict(zip(KEYS, words, strict=True)),
        at=float(at) if "time" in question.by else None,
        is_simulator=is_simulator,
        inferences=whole.count,
        failures=failures,
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        max_ms=whole.max_ms,
        texts=text_times(whole, first_tokens),
    )
