"""Messages that the leader must publish after actions at any controller.

Only the leader publishes, so that a device receives orders in sequence. Only the device is
stored, not the order: the newest order is sent.
"""

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import bindparam, delete, insert, select
from sqlalchemy.orm import Session

from edgepack.fleet.database import lease
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import DeviceRow, UnsentRow

AT_ONCE = 1000
# Statements are made once: to build one takes SQLAlchemy longer than to run it.
_OLDEST = select(UnsentRow.id, UnsentRow.device).order_by(UnsentRow.id).limit(AT_ONCE)
_WANTED = select(DeviceRow.id, DeviceRow.desired).where(
    DeviceRow.id.in_(bindparam("names", expanding=True))
)


class Unsent(NamedTuple):
    """Messages to publish, and the number up to which the queue is then published."""

    publications: tuple[Publication, ...]
    up_to: int


def add(session: Session, publications: Iterable[Publication]) -> None:
    """Leave publications to the leader, and wake the leader."""
    if rows := [{"device": one.device} for one in publications]:
        session.execute(insert(UnsentRow), rows)
    lease.ask(session)


def read(session: Session) -> Unsent:
    """Return the oldest unsent messages in their current form; none for a removed device."""
    rows = session.execute(_OLDEST).all()
    if not rows:
        return Unsent((), 0)
    names = list(dict.fromkeys(name for _, name in rows))
    found = session.execute(_WANTED, {"names": names})
    wanted = {name: desired or "" for name, desired in found}
    said = [Publication(device=name, payload=wanted.get(name, "").encode()) for name in names]
    return Unsent(tuple(said), rows[-1][0])


def note_sent(session: Session, up_to: int) -> None:
    """Delete the published messages."""
    session.execute(delete(UnsentRow).where(UnsentRow.id <= up_to))
