"""Log lines of devices in the database: the last request of each device, and its answer.

A device is not trusted: lines are stored only as the answer to the request that waits.
"""

from collections.abc import Iterable, Sequence

from sqlalchemy import delete
from sqlalchemy.orm import Session

from edgepack.fleet.database import audit, devices
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import DeviceLogRow, DeviceRow
from edgepack.fleet.database.views import view_of
from edgepack.fleet.documents.logs import LogRequest, LogState, LogView
from edgepack.wire.orders import LogOrder
from edgepack.wire.transfers import LogLines

KEEP_S = 30 * 24 * 3600.0
"""Lines are deleted so long after the request."""


def begin(session: Session, row: DeviceRow, request: LogRequest, now: float) -> Publication:
    """Store a request in place of the device's request before, and ask the device."""
    found = session.get(DeviceLogRow, row.id) or DeviceLogRow(device=row.id, number=0)
    found.number += 1
    found.wanted, found.asked_at, found.received_at = request.lines, now, 0.0
    found.expires_at = now + request.valid_s
    found.because, found.lines = "", ()
    session.add(found)
    session.flush()
    because = f"{request.lines} log lines, at most"
    audit.note(session, now, Entry(action="logs.request", device=row.id, because=because))
    order = LogOrder(request=_name(found), lines=found.wanted, expires_at=found.expires_at)
    return devices.ask_for_log(row, order, now)


def add(
    session: Session, answers: Iterable[tuple[str, LogLines]], now: float
) -> tuple[Publication, ...]:
    """Store the answers of devices; return the orders that end their requests."""
    publications = []
    for device, answer in answers:
        found, row = session.get(DeviceLogRow, device), session.get(DeviceRow, device)
        if found is None or row is None or answer.request != _name(found) or found.received_at:
            continue
        found.received_at, found.because = now, answer.because
        found.lines = answer.lines[-found.wanted :]
        publications.append(devices.ask_for_log(row, None, now))
    return tuple(publications)


def show(session: Session, device: str, now: float) -> LogView:
    """Return the log lines of a device, by the last request."""
    found = session.get(DeviceLogRow, device)
    if found is None:
        return LogView(device=device)
    state: LogState = "EXPIRED" if now > found.expires_at else "ASKED"
    if found.received_at:
        state = "REFUSED" if found.because else "RECEIVED"
    return view_of(LogView, found, state=state)


def remove(session: Session, names: Sequence[str]) -> None:
    """Delete the log lines of devices."""
    session.execute(delete(DeviceLogRow).where(DeviceLogRow.device.in_(names)))


def forget_old(session: Session, now: float) -> None:
    """Delete old log lines."""
    session.execute(delete(DeviceLogRow).where(DeviceLogRow.asked_at < now - KEEP_S))


def _name(row: DeviceLogRow) -> str:
    """Return the id of a request: with its time, since a removed device begins anew."""
    return f"l{row.number}t{int(row.asked_at)}"
