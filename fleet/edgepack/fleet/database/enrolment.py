"""Enrol, move, label and remove devices in the database, on a user's request."""

import logging
from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.data_folder import CONTROLLER
from edgepack.fleet.database import (
    assignments,
    audit,
    device_logs,
    measurements,
    records,
    standing,
    telemetry_sequences,
)
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import DeviceRow
from edgepack.fleet.database.where import KEY, RESERVED, labels
from edgepack.fleet.documents.audit import Action
from edgepack.wire import topics
from edgepack.wire.telemetry import Event

log = logging.getLogger(__name__)

MAX_LABELS = 32
MAX_VALUE = 64


def enroll(
    session: Session,
    *,
    device: str,
    group: str,
    called: Mapping[str, str] | None = None,
    replace: bool = False,
    now: float,
) -> DeviceRow:
    """Take a device into the fleet.

    Args:
        session: The transaction.
        device: Its id.
        group: Its group.
        called: Its first labels, by key.
        replace: Whether to replace an enrolled device with the same id.
        now: Seconds since the epoch.

    Raises:
        FleetError: Device, group or a label has an invalid name, or the id is enrolled already.
    """
    check_name(device, "device id")
    check_name(group, "group")
    if device.lower().startswith(CONTROLLER):
        raise FleetError(f"{device!r} is a name of controllers", remedy="choose another id")
    row = session.get(DeviceRow, device)
    if row is None:
        _check_case(session, device)
        row = DeviceRow(id=device, group=group, enrolled_at=now, labels="{}")
        session.add(row)
        session.flush()
        log.info("device=%s enrolled group=%s", device, group)
        _note(session, "device.enroll", row, f"enrolled in group {group}", now)
    elif not replace:
        raise FleetError(
            f"device {device} is enrolled already, in group {row.group}",
            found_in="edgepack fleet devices",
            remedy=f"edgepack fleet devices move {device} --group {group}; or --replace, which "
            "ends the credentials that it has",
        )
    else:
        row.enrolled_at = now
        _note(session, "device.enroll", row, "its credentials are replaced", now)
        move(session, row, group, now)
    label(session, row, called or {}, now)
    return row


def _check_case(session: Session, device: str) -> None:
    """Reject an id that differs from an enrolled id in case only.

    MQTT tells the two apart, but brokers that take the user name as a host name do not: ejabberd
    lets the second device take over the first one's session.

    Raises:
        FleetError: An id that differs in case only is enrolled.
    """
    found = session.scalar(
        select(DeviceRow.id).where(func.lower(DeviceRow.id) == device.lower()).limit(1)
    )
    if found is not None:
        raise FleetError(
            f"device {found} is enrolled already, and {device} differs from it in upper and lower "
            "case only: some brokers take both for one device",
            found_in="edgepack fleet devices",
            remedy=f"choose another id, or write {found} --replace",
        )


def move(session: Session, row: DeviceRow, group: str, now: float) -> None:
    """Move a device to another group; its rollouts continue.

    Raises:
        FleetError: The group's name is invalid.
    """
    check_name(group, "group")
    if row.group != group:
        log.info("device=%s from=%s to=%s because=moved by a person", row.id, row.group, group)
        _note(session, "device.move", row, f"from group {row.group} to {group}", now)
        row.group = group


def label(session: Session, row: DeviceRow, changes: Mapping[str, str], now: float) -> None:
    """Set labels of a device; an empty value removes a label.

    Raises:
        FleetError: A key or value is invalid, or there are too many labels.
    """
    for key, value in changes.items():
        _check_label(key, value)
    kept = {key: value for key, value in (labels(row) | dict(changes)).items() if value}
    if len(kept) > MAX_LABELS:
        raise FleetError(
            f"a device has at most {MAX_LABELS} labels, {row.id} would have {len(kept)}",
            remedy=f"edgepack fleet devices label {row.id} KEY=  takes one away",
        )
    encoded = msgspec.json.encode(dict(sorted(kept.items()))).decode()
    if encoded != row.labels:
        row.labels = encoded
        said = " ".join(f"{key}={value}" for key, value in changes.items())
        _note(session, "device.label", row, said, now)


def remove(session: Session, rows: Sequence[DeviceRow], now: float) -> tuple[Publication, ...]:
    """Remove devices from the fleet and from their rollouts."""
    names = [row.id for row in rows]
    assignments.remove(session, names)
    measurements.remove(session, names)
    standing.forget_models(session, names)
    telemetry_sequences.remove(session, names)
    device_logs.remove(session, names)
    for row in rows:
        session.delete(row)
        event = Event(at=now, kind="enrolment", bundle="", because="removed by a person")
        records.add_device_events(session, [(row.id, event)], now)
        log.info("device=%s removed because=removed by a person", row.id)
        _note(session, "device.remove", row, "removed by a person", now)
    session.flush()
    return tuple(Publication(device=row.id, payload=b"") for row in rows)


def _note(session: Session, action: Action, row: DeviceRow, because: str, now: float) -> None:
    audit.note(session, now, Entry(action=action, device=row.id, because=because))


def check_name(name: str, what: str) -> None:
    """Reject an invalid device id or group.

    Raises:
        FleetError: The name is invalid.
    """
    try:
        topics.check_name(name, what)
    except ValueError as error:
        raise FleetError(
            str(error), remedy="edgepack fleet enroll cam-7 --group cameras"
        ) from error


def _check_label(key: str, value: str) -> None:
    problem = ""
    if not KEY.fullmatch(key):
        problem = (
            f"{key[:80]!r} is not a key of a label: 1 to 63 of A-Z a-z 0-9 _ . -, a letter first"
        )
    elif key in RESERVED:
        problem = f"{key!r} is not a label: that is what the fleet knows of a device itself"
    elif len(value) > MAX_VALUE or not value.isprintable() or "'" in value or '"' in value:
        problem = f"a label has at most {MAX_VALUE} characters to look at, and no quotes"
    if problem:
        raise FleetError(
            problem,
            found_in=f"{key[:80]}={value[:80]}",
            remedy="edgepack fleet devices label cam-7 site=berlin",
        )
