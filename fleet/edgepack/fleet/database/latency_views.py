"""Views of a release's latency: on a rollout's devices, on all devices, over time."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from edgepack.fleet.database.latency import DAY_S, Sum, add_sums
from edgepack.fleet.database.schema import LatencyRow, LatencySourceRow, RolloutRow
from edgepack.fleet.documents.latency import text_times
from edgepack.fleet.documents.rollouts import LatencySpan, LatencyView
from edgepack.wire.histogram import merge, percentile
from edgepack.wire.telemetry import Histogram

MAX_READ = 20_000
"""Rows that one question reads at most, the newest first."""
_KIND = (
    LatencyRow.is_simulator,
    LatencyRow.hardware_class,
    LatencyRow.provider,
    LatencyRow.variant,
)
_SUM = tuple(getattr(LatencyRow, name) for name in Sum._fields)

Kind = tuple[bool, str, str, str]
"""Whether it is simulated, and hardware class, provider and variant."""


def latency_of(session: Session, rollout: RolloutRow) -> tuple[LatencyView, ...]:
    """Return latency of a rollout's release on its devices, by kind of device.

    Simulated providers come last: their times are not comparable to real times.
    """
    query = select(*_KIND, *_SUM).where(
        LatencyRow.rollout == rollout.number,
        LatencyRow.digest == rollout.digest,
        LatencyRow.length_s == DAY_S,
    )
    source = LatencySourceRow
    like = (source.is_simulator, source.hardware_class, source.provider, source.variant)
    counting = select(*like, func.count()).where(
        source.rollout == rollout.number, source.digest == rollout.digest
    )
    rows = session.execute(counting.group_by(*like))
    devices = {(key[0], key[1], key[2], key[3]): count for *key, count in rows}
    sums = _by_kind(session, query)
    return tuple(_view(key, devices.get(key, 0), parts) for key, parts in sorted(sums.items()))


def latency_of_release(
    session: Session, digest: str, hardware_class: str = ""
) -> tuple[LatencyView, ...]:
    """Return latency of a release on all devices that ran the release, or on a single hardware
    class.

    In how many devices that was is not counted.
    """
    query = select(*_KIND, *_SUM).where(LatencyRow.digest == digest, LatencyRow.length_s == DAY_S)
    if hardware_class:
        query = query.where(LatencyRow.hardware_class == hardware_class)
    sums = _by_kind(session, query.limit(MAX_READ))
    return tuple(_view(key, 0, parts) for key, parts in sorted(sums.items()))


def latency_over_time(
    session: Session, digest: str, *, length_s: int, since: float, hardware_class: str = ""
) -> tuple[LatencySpan, ...]:
    """Return latency of a release by hardware class, as successive spans of time.

    Args:
        session: The transaction.
        digest: Root digest of the release.
        length_s: Of each span, seconds; a value of `LENGTHS_S`.
        since: Seconds since the epoch.
        hardware_class: Only of this class; "" means all.

    Returns:
        By hardware class and time; spans without inferences are left out.
    """
    row = LatencyRow
    query = select(row.hardware_class, row.start, row.histogram).where(
        row.digest == digest, row.length_s == length_s, row.start >= since
    )
    if hardware_class:
        query = query.where(row.hardware_class == hardware_class)
    found: dict[tuple[str, int], list[Histogram]] = defaultdict(list)
    newest_first = query.order_by(row.start.desc()).limit(MAX_READ)
    for name, start, histogram in session.execute(newest_first):
        found[name, start].append(histogram)
    spans = []
    for (name, start), parts in sorted(found.items()):
        whole = merge(parts)
        if whole.count:
            p50_ms, p95_ms = (percentile(whole, q) for q in (50, 95))
            spans.append(
                LatencySpan(
                    hardware_class=name,
                    start=start,
                    inferences=whole.count,
                    p50_ms=p50_ms,
                    p95_ms=p95_ms,
                )
            )
    return tuple(spans)


def _by_kind(session: Session, query: Select[*tuple[Any, ...]]) -> dict[Kind, list[Sum]]:
    found: dict[Kind, list[Sum]] = defaultdict(list)
    for simulated, hardware_class, provider, variant, *sums in session.execute(query):
        found[simulated, hardware_class, provider, variant].append(Sum(*sums))
    return found


def _view(key: Kind, devices: int, parts: Sequence[Sum]) -> LatencyView:
    is_simulator, hardware_class, provider, variant = key
    failures, whole, first_tokens = add_sums(parts)
    p50_ms, p95_ms, p99_ms = (percentile(whole, q) if whole.count else 0.0 for q in (50, 95, 99))
    return LatencyView(
        hardware_class=hardware_class,
        provider=provider,
        variant=variant,
        is_simulator=is_simulator,
        devices=devices,
        inferences=whole.count,
        failures=failures,
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        texts=text_times(whole, first_tokens),
    )
