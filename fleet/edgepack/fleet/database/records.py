"""What happened and how fast it was: events and latency windows in the database."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from edgepack.fleet.database.devices import simulated_providers
from edgepack.fleet.database.schema import (
    AssignmentRow,
    DeviceRow,
    EventRow,
    RolloutRow,
    TelemetryRow,
)
from edgepack.fleet.database.upsert import upsert
from edgepack.fleet.documents.fleet import EventView
from edgepack.fleet.documents.rollouts import LatencyView
from edgepack.wire.histogram import merge, percentile
from edgepack.wire.messages import Event, Histogram, Telemetry

KEEP_S = 30 * 24 * 3600.0
"""Events and windows older than this are forgotten."""
MAX_TEXT = 2000
MAX_EVENTS = 5000
"""Events of one device that are kept; the oldest go first."""


def add_device_events(session: Session, events: Sequence[tuple[str, Event]], now: float) -> None:
    """Takes down what devices said happened to them: each event with its device."""
    rows = [
        {
            "at": event.at,
            "received_at": now,
            "device": device,
            "kind": event.kind,
            "bundle": event.bundle,
            "from_state": event.from_state,
            "to_state": event.to_state,
            "because": event.because[:MAX_TEXT],
            "rollout": event.rollout,
        }
        for device, event in events
    ]
    if rows:
        session.connection().execute(insert(EventRow), rows)


def add_rollout_event(
    session: Session,
    *,
    rollout: str,
    bundle: str,
    before: str,
    after: str,
    because: str,
    now: float,
) -> None:
    """Takes down a transition of a rollout."""
    session.add(
        EventRow(
            at=now,
            received_at=now,
            device="",
            kind="rollout",
            bundle=bundle,
            from_state=before,
            to_state=after,
            because=because,
            rollout=rollout,
        )
    )


def events_after(session: Session, after: int, limit: int) -> tuple[EventView, ...]:
    """Events newer than one that is known, oldest first."""
    rows = session.scalars(
        select(EventRow).where(EventRow.id > after).order_by(EventRow.id).limit(limit)
    )
    return tuple(
        EventView(
            id=row.id,
            at=row.at,
            device=row.device,
            kind=row.kind,
            bundle=row.bundle,
            from_state=row.from_state,
            to_state=row.to_state,
            because=row.because,
            rollout=row.rollout,
        )
        for row in rows
    )


def add_telemetry(session: Session, windows: Sequence[tuple[str, Telemetry]], now: float) -> None:
    """Takes down windows, each with its device; the same window once more replaces it."""
    if not windows:
        return
    about = select(DeviceRow.id, DeviceRow.hardware_class, DeviceRow.reported)
    query = about.where(DeviceRow.id.in_({device for device, _ in windows}))
    classes, simulated = {}, {}
    for device, hardware_class, reported in session.execute(query):
        classes[device] = hardware_class
        simulated[device] = simulated_providers(reported)
    rows = [
        {
            "device": device,
            "digest": telemetry.digest,
            "variant": telemetry.variant,
            "provider": telemetry.provider,
            "is_simulator": telemetry.provider in simulated[device],
            "hardware_class": classes[device],
            "window_start": telemetry.window_start,
            "window_s": telemetry.window_s,
            "received_at": now,
            "failures": telemetry.failures,
            "histogram": msgspec.json.encode(telemetry.latency).decode(),
        }
        for device, telemetry in windows
    ]
    added = upsert(session, TelemetryRow)
    replaced = {name: added.excluded[name] for name in ("histogram", "failures")}
    key = ["device", "digest", "variant", "provider", "window_start"]
    statement = added.on_conflict_do_update(index_elements=key, set_=replaced)
    session.connection().execute(statement, rows)


def latency_of(session: Session, rollout: RolloutRow) -> tuple[LatencyView, ...]:
    """Latency of a rollout's release on its devices; the histograms of a kind are merged.

    Simulated providers come last: their times say nothing of real ones.
    """
    kinds: dict[_Kind, list[TelemetryRow]] = defaultdict(list)
    query = (
        select(TelemetryRow)
        .join(AssignmentRow, AssignmentRow.device == TelemetryRow.device)
        .where(AssignmentRow.rollout == rollout.number, TelemetryRow.digest == rollout.digest)
    )
    for row in session.scalars(query):
        kinds[_Kind(row.is_simulator, row.hardware_class, row.provider, row.variant)].append(row)
    return tuple(_latency_view(kind, rows) for kind, rows in sorted(kinds.items()))


class _Kind(NamedTuple):
    is_simulator: bool
    hardware_class: str
    provider: str
    variant: str


def _latency_view(kind: _Kind, rows: list[TelemetryRow]) -> LatencyView:
    histograms = [msgspec.json.decode(row.histogram, type=Histogram) for row in rows]
    whole = merge(histograms)
    p50_ms, p95_ms, p99_ms = (percentile(whole, q) if whole.count else 0.0 for q in (50, 95, 99))
    return LatencyView(
        **kind._asdict(),
        devices=len({row.device for row in rows}),
        inferences=whole.count,
        failures=sum(row.failures for row in rows),
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
    )


def forget_old(session: Session, now: float) -> None:
    """Removes what is older than `KEEP_S`, and of a device's events those beyond `MAX_EVENTS`."""
    session.execute(delete(EventRow).where(EventRow.received_at < now - KEEP_S))
    session.execute(delete(TelemetryRow).where(TelemetryRow.received_at < now - KEEP_S))
    counts = select(EventRow.device).where(EventRow.device != "").group_by(EventRow.device)
    for device in session.scalars(counts.having(func.count() > MAX_EVENTS)).all():
        own = select(EventRow.id).where(EventRow.device == device).order_by(EventRow.id.desc())
        oldest_kept = session.scalar(own.offset(MAX_EVENTS - 1).limit(1))
        session.execute(
            delete(EventRow).where(EventRow.device == device, EventRow.id < oldest_kept)
        )
