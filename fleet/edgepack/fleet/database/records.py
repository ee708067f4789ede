"""Events in the database."""

from collections.abc import Sequence

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from edgepack.fleet.database.schema import (
    EventRow,
)
from edgepack.fleet.database.views import view_of
from edgepack.fleet.documents.fleet import EventView
from edgepack.wire.telemetry import Event

KEEP_S = 30 * 24 * 3600.0
"""Events older than this are forgotten."""
MAX_TEXT = 2000
MAX_EVENTS = 5000
"""Events of one device that are kept; the oldest go first."""


def add_device_events(session: Session, events: Sequence[tuple[str, Event]], now: float) -> None:
    """Store events of devices, each with its device."""
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
    """Take down a transition of a rollout."""
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
    """Return events after a known event, oldest first."""
    rows = session.scalars(
        select(EventRow).where(EventRow.id > after).order_by(EventRow.id).limit(limit)
    )
    return tuple(view_of(EventView, row) for row in rows)


def latest_events(
    session: Session, *, device: str = "", rollout: str = "", before: int = 0, limit: int
) -> tuple[EventView, ...]:
    """Return the newest events of a device, of a rollout itself, or of all rollouts; the newest
    first.

    Args:
        session: The transaction.
        device: A device's id; "" means events of rollouts.
        rollout: A rollout's id; "" means all.
        before: Only events older than this event; 0 sets no bound.
        limit: At most so many.
    """
    query = select(EventRow).where(EventRow.device == device)
    if rollout:
        query = query.where(EventRow.rollout == rollout)
    if before:
        query = query.where(EventRow.id < before)
    rows = session.scalars(query.order_by(EventRow.id.desc()).limit(limit))
    return tuple(view_of(EventView, row) for row in rows)


def forget_old(session: Session, now: float) -> None:
    """Remove events older than `KEEP_S`, and a device's events beyond `MAX_EVENTS`."""
    session.execute(delete(EventRow).where(EventRow.received_at < now - KEEP_S))
    counts = select(EventRow.device).where(EventRow.device != "").group_by(EventRow.device)
    for device in session.scalars(counts.having(func.count() > MAX_EVENTS)).all():
        own = select(EventRow.id).where(EventRow.device == device).order_by(EventRow.id.desc())
        oldest_kept = session.scalar(own.offset(MAX_EVENTS - 1).limit(1))
        session.execute(
            delete(EventRow).where(EventRow.device == device, EventRow.id < oldest_kept)
        )
