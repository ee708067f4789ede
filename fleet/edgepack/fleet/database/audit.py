"""Audit log: actor, object and the numbers that decided.

An entry is written in the transaction of its action, so action and entry never exist alone. The
start of the transaction names the actor (see `Store.transaction`).
"""

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from edgepack.fleet.database.schema import AuditRow
from edgepack.fleet.database.views import view_of
from edgepack.fleet.documents.audit import Action, AuditEntry, Number

ACTOR = "actor"
"""Under this name a session knows who acts."""
CONTROLLER = "controller"
KEEP_S = 400 * 24 * 3600.0
"""Entries older than this are forgotten."""
MAX_TEXT = 2000


class Entry(NamedTuple):
    """Entry to write; see `AuditEntry`. The default actor is the transaction's actor."""

    action: Action
    actor: str = ""
    rollout: str = ""
    device: str = ""
    model: str = ""
    digest: str = ""
    because: str = ""
    numbers: Mapping[str, Number] = {}


class Wanted(NamedTuple):
    """Filter of entries; an empty text matches all entries.

    Attributes:
        actor, action, rollout, device, model: As in an entry; a prefix of actor or action is
            enough.
        after, before: Only entries with an id between these; 0 sets no bound.
    """

    actor: str = ""
    action: str = ""
    rollout: str = ""
    device: str = ""
    model: str = ""
    after: int = 0
    before: int = 0


def note(session: Session, now: float, *entries: Entry) -> None:
    """Write entries."""
    rows = [
        entry._asdict()
        | {
            "at": now,
            "actor": entry.actor or session.info[ACTOR],
            "because": entry.because[:MAX_TEXT],
        }
        for entry in entries
    ]
    if rows:
        session.connection().execute(insert(AuditRow), rows)


def entries(session: Session, wanted: Wanted, limit: int) -> tuple[AuditEntry, ...]:
    """Return entries, the newest first."""
    query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
    for column, value in (
        (AuditRow.rollout, wanted.rollout),
        (AuditRow.device, wanted.device),
        (AuditRow.model, wanted.model),
    ):
        if value:
            query = query.where(column == value)
    for column, beginning in ((AuditRow.actor, wanted.actor), (AuditRow.action, wanted.action)):
        if beginning:
            query = query.where(column.startswith(beginning, autoescape=True))
    if wanted.after:
        query = query.where(AuditRow.id > wanted.after)
    if wanted.before:
        query = query.where(AuditRow.id < wanted.before)
    return tuple(view_of(AuditEntry, row) for row in session.scalars(query))


def last(session: Session) -> int:
    """Return the id of the newest entry; 0 for none."""
    return session.scalar(select(func.max(AuditRow.id))) or 0


def has_changed_devices(session: Session, after: int) -> bool:
    """Return True if a device was enrolled, moved, labelled or removed since that entry."""
    newer = select(AuditRow.id).where(AuditRow.id > after, AuditRow.device != "")
    return session.scalar(newer.limit(1)) is not None


def forget_old(session: Session, now: float) -> None:
    """Remove entries older than `KEEP_S`."""
    session.execute(delete(AuditRow).where(AuditRow.at < now - KEEP_S))
