"""Percentiles over any devices and any time, out of the sums by minute, hour and day.

What it costs is bounded by the number of sums that are read, and so by the kinds of devices and
releases, never by the number of devices: `LENGTHS_S` has one that fits any stretch of time.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database.latency import LENGTHS_S
from edgepack.fleet.database.schema import LatencyRow, ReleaseRow
from edgepack.fleet.database.where import parse_where
from edgepack.fleet.documents.latency import LatencyPart, LatencyQuestion, LatencyReport
from edgepack.wire.histogram import merge, percentile
from edgepack.wire.messages import Histogram

DAY_S = 24 * 3600.0
MAX_STEPS = 200
"""Sums that follow one another and are read of one kind, at most; beyond, longer ones are."""
MAX_ROWS = 20_000
"""Sums that are read at most: about a second."""
KEYS = ("model", "version", "variant", "provider", "hardware_class", "group", "rollout")

_COLUMNS = (
    *(ReleaseRow.name, ReleaseRow.version, LatencyRow.variant, LatencyRow.provider),
    *(LatencyRow.hardware_class, LatencyRow.device_group, LatencyRow.rollout),
    *(LatencyRow.is_simulator, LatencyRow.start, LatencyRow.failures, LatencyRow.histogram),
)

Key = tuple[bool, tuple[str, ...], int]
"""Whether it is simulated, what is told apart by the order of `KEYS`, and the start or 0."""


def report(session: Session, question: LatencyQuestion, now: float) -> LatencyReport:
    """What was measured.

    Args:
        session: The transaction.
        question: Which latencies.
        now: Seconds since the epoch.

    Raises:
        FleetError: The time makes no sense, the expression speaks of what latencies are not kept
            by, or there is too much to read.
    """
    until = now if question.until is None else question.until
    since = until - DAY_S if question.since is None else question.since
    if not 0 <= since < until:
        raise FleetError("the time ends before it begins", remedy="--since 24h")
    matches = _Matcher(question.where) if question.where else _everything
    length_s = _length(since, until, now)
    start = int(since // length_s * length_s)
    found = session.execute(_rows(question, length_s, start, until)).all()
    if len(found) > MAX_ROWS:
        raise FleetError(
            f"more than {MAX_ROWS:,} sums would have to be read",
            found_in=f"{(until - start) / 3600:.0f} hours, by sums of {length_s} s",
            remedy="name a --model or a --group, or a shorter time",
        )
    parts: dict[Key, list[tuple[int, Histogram]]] = defaultdict(list)
    for row in found:
        words = _words(row[:7])
        is_simulator, at, failures, text = row[7:]
        if not matches(words):
            continue
        told = tuple(word if name in question.by else "" for name, word in words.items())
        key = (is_simulator, told, at if "time" in question.by else 0)
        parts[key].append((failures, msgspec.json.decode(text, type=Histogram)))
    return LatencyReport(
        since=float(start),
        until=until,
        step_s=length_s,
        parts=tuple(_part(key, sums, question) for key, sums in sorted(parts.items())),
    )


def _length(since: float, until: float, now: float) -> int:
    """The shortest sums that are still kept and are not too many."""
    for length_s, kept_s in sorted(LENGTHS_S.items()):
        if since >= now - kept_s + length_s and (until - since) / length_s <= MAX_STEPS:
            return length_s
    return max(LENGTHS_S)


def _rows(
    question: LatencyQuestion, length_s: int, start: int, until: float
) -> Select[*tuple[Any, ...]]:
    query = (
        select(*_COLUMNS)
        .select_from(LatencyRow)
        .outerjoin(ReleaseRow, LatencyRow.digest == ReleaseRow.digest)
        .where(LatencyRow.length_s == length_s, LatencyRow.start >= start, LatencyRow.start < until)
        .limit(MAX_ROWS + 1)
    )
    if question.model:
        query = query.where(ReleaseRow.name == question.model)
    if question.group:
        query = query.where(LatencyRow.device_group == question.group)
    return query


def _words(values: Sequence[Any]) -> dict[str, str]:
    *words, rollout = values
    numbered = f"r{rollout}" if rollout else ""
    return dict(zip(KEYS, [*(str(word or "") for word in words), numbered], strict=True))


class _Matcher:
    """Whether sums are meant; each kind is judged once."""

    def __init__(self, text: str) -> None:
        self._where = parse_where(text)
        self._judged: dict[tuple[str, ...], bool] = {}
        if unknown := sorted(self._where.keys - set(KEYS)):
            raise FleetError(
                f"latency is not kept by {unknown[0]!r}",
                found_in=f"it is by: {', '.join(KEYS)}",
                remedy="put such devices into a group: edgepack fleet devices move DEVICE --group "
                "GROUP",
            )

    def __call__(self, words: dict[str, str]) -> bool:
        key = tuple(words.values())
        if key not in self._judged:
            found = {name: frozenset({word}) for name, word in words.items()}
            self._judged[key] = self._where.matches(found)
        return self._judged[key]


def _everything(_: dict[str, str]) -> bool:
    return True


def _part(key: Key, sums: list[tuple[int, Histogram]], question: LatencyQuestion) -> LatencyPart:
    is_simulator, words, at = key
    whole = merge(histogram for _, histogram in sums)
    p50_ms, p95_ms, p99_ms = (percentile(whole, q) if whole.count else 0.0 for q in (50, 95, 99))
    return LatencyPart(
        **dict(zip(KEYS, words, strict=True)),
        at=float(at) if "time" in question.by else None,
        is_simulator=is_simulator,
        inferences=whole.count,
        failures=sum(failures for failures, _ in sums),
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        max_ms=whole.max_ms,
    )
