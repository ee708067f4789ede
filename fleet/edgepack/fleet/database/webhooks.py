"""Webhooks in the database, and their undelivered messages.

Messages have no rows: messages are audit entries and events of devices, and each webhook stores its
position. So a message exists together with its action, outlives any restart, and a slow webhook
costs no space.
"""

from collections.abc import Sequence
from heapq import merge
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, false, func, or_, select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import audit
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.schema import AuditRow, EventRow, WebhookRow
from edgepack.fleet.database.standing import DEGRADED, FAILED_STATES
from edgepack.fleet.documents.webhooks import DEVICE_FAILED

MAX_WEBHOOKS = 20
MAX_WAITING = 10_000
"""Messages of each source that wait for a webhook that is behind; the oldest go first."""
AT_ONCE = 50
_STEP = 1000
"""How far a webhook may be behind in what it does not tell."""
DELAYS_S = (1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 4 * 3600.0, 8 * 3600.0, 12 * 3600.0)
"""Before the second attempt, the third …; after the last one a message is given up."""
MAX_REASON = 200


class Message(NamedTuple):
    """Message to deliver.

    Attributes:
        source: `a` for the audit log, `e` for devices' events.
        id: Of the entry or event.
        type: An action of the audit log, or `device.failed`.
        at: Time of the event, seconds since the epoch (UTC).
        data: The payload.
    """

    source: str
    id: int
    type: str
    at: float
    data: dict[str, Any]


def add(session: Session, row: WebhookRow, now: float) -> None:
    """Store a webhook for all events from now on.

    Raises:
        FleetError: The name is taken, or there are too many webhooks.
    """
    if session.get(WebhookRow, row.name) is not None:
        raise FleetError(
            f"there is a webhook {row.name!r} already",
            remedy=f"edgepack fleet webhooks remove {row.name}",
        )
    if (session.scalar(select(func.count()).select_from(WebhookRow)) or 0) >= MAX_WEBHOOKS:
        raise FleetError(
            f"a fleet has at most {MAX_WEBHOOKS} webhooks",
            remedy="edgepack fleet webhooks remove NAME",
        )
    row.audit_after = session.scalar(select(func.max(AuditRow.id))) or 0
    row.event_after = session.scalar(select(func.max(EventRow.id))) or 0
    session.add(row)
    audit.note(session, now, Entry(action="webhook.add", because=row.name))


def find(session: Session, name: str) -> WebhookRow:
    """Return the webhook of that name.

    Raises:
        FleetError: There is none.
    """
    row = session.get(WebhookRow, name)
    if row is None:
        raise FleetError(f"there is no webhook {name[:80]!r}", remedy="edgepack fleet webhooks")
    return row


def all_of(session: Session) -> Sequence[WebhookRow]:
    """Return all webhooks, by name."""
    return session.scalars(select(WebhookRow).order_by(WebhookRow.name)).all()


def remove(session: Session, name: str, now: float) -> WebhookRow:
    """Forget a webhook.

    Raises:
        FleetError: There is none of that name.
    """
    row = find(session, name)
    session.delete(row)
    audit.note(session, now, Entry(action="webhook.remove", because=name))
    return row


def waiting(session: Session, row: WebhookRow) -> tuple[Message, ...]:
    """Return the oldest messages that a webhook has yet to tell, in order."""
    said = session.scalars(_entries(row).order_by(AuditRow.id).limit(AT_ONCE))
    happened = session.scalars(_events(row).order_by(EventRow.id).limit(AT_ONCE))
    # Those of a source stay in its order, however clocks went: it is remembered up to where.
    found = merge(map(_of_entry, said), map(_of_event, happened), key=lambda message: message.at)
    return tuple(islice(found, AT_ONCE))


def pass_over(session: Session, row: WebhookRow) -> None:
    """Advance a webhook's position past unsubscribed events at intervals, after all subscribed
    events were delivered.
    """
    for source, of in ((AuditRow, "audit_after"), (EventRow, "event_after")):
        newest = session.scalar(select(func.max(source.id))) or 0
        if newest - getattr(row, of) > _STEP:
            setattr(row, of, newest)


def is_far_behind(session: Session, row: WebhookRow) -> bool:
    """Return True if `pass_over` would move on."""
    newest = session.scalar(select(func.max(AuditRow.id))) or 0
    events = session.scalar(select(func.max(EventRow.id))) or 0
    return newest - row.audit_after > _STEP or events - row.event_after > _STEP


def note_delivered(session: Session, name: str, message: Message) -> None:
    """Record a delivered message."""
    if (row := session.get(WebhookRow, name)) is not None:
        _pass(row, message)
        row.delivered += 1
        row.failures, row.because, row.next_at = 0, "", 0.0


def note_failed(
    session: Session,
    name: str,
    message: Message,
    because: str,
    now: float,
) -> None:
    """Record a failed attempt: try again later, or give the message up."""
    row = session.get(WebhookRow, name)
    if row is None:
        return
    row.because = because[:MAX_REASON]
    row.failures += 1
    row.next_at = now + DELAYS_S[min(row.failures, len(DELAYS_S)) - 1]
    if row.failures > len(DELAYS_S):
        _pass(row, message)
        row.skipped += 1
    for query, column, of in (
        (_entries(row), AuditRow.id, "audit_after"),
        (_events(row), EventRow.id, "event_after"),
    ):
        ids = query.with_only_columns(column)
        newest_lost = session.scalar(ids.order_by(column.desc()).offset(MAX_WAITING).limit(1))
        if newest_lost is not None:
            lost = ids.where(column <= newest_lost).subquery()
            row.skipped += session.scalar(select(func.count()).select_from(lost)) or 0
            setattr(row, of, newest_lost)


def _pass(row: WebhookRow, message: Message) -> None:
    if message.source == "a":
        row.audit_after = max(row.audit_after, message.id)
    else:
        row.event_after = max(row.event_after, message.id)


def _entries(row: WebhookRow) -> Select[AuditRow]:
    types = [one for one in row.types if one != DEVICE_FAILED]
    wanted: list[ColumnElement[bool]] = [
        AuditRow.action == one if "." in one else AuditRow.action.startswith(f"{one}.")
        for one in types
    ]
    return select(AuditRow).where(AuditRow.id > row.audit_after, or_(false(), *wanted))


def _events(row: WebhookRow) -> Select[EventRow]:
    types = row.types
    is_told = DEVICE_FAILED in types or "device" in types
    return select(EventRow).where(
        EventRow.id > row.event_after,
        EventRow.device != "",
        EventRow.to_state.in_(sorted({*FAILED_STATES, DEGRADED}) if is_told else ()),
    )


def _of_entry(row: AuditRow) -> Message:
    data = {
        "rollout": row.rollout,
        "device": row.device,
        "model": row.model,
        "digest": row.digest,
        "actor": row.actor,
        "because": row.because,
        "numbers": row.numbers,
    }
    return Message("a", row.id, row.action, row.at, data)


def _of_event(row: EventRow) -> Message:
    data = {
        "rollout": row.rollout,
        "device": row.device,
        "bundle": row.bundle,
        "state": row.to_state,
        "because": row.because,
    }
    return Message("e", row.id, DEVICE_FAILED, row.received_at, data)
