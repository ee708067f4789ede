"""Devices in the database: store reports, and write orders."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from sqlalchemy import bindparam, func, select, update
from sqlalchemy.orm import Session

from edgepack.errors import FleetError, TransferError
from edgepack.fleet.database.schema import DeviceRow
from edgepack.fleet.database.standing import standing_of, symptom_of
from edgepack.wire.messages import decode, encode
from edgepack.wire.orders import (
    MAX_SEQUENCE,
    MAX_STEP,
    CaptureOrder,
    Desired,
    LogOrder,
    ModelOrder,
)
from edgepack.wire.reports import Active, Reported

log = logging.getLogger(__name__)

ANSWER_AGAIN_AFTER_S = 10.0
"""A device that keeps reporting an older sequence is told again so often at most."""


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """A retained `desired` to publish once the transaction is durable.

    Attributes:
        device: The device's id.
        payload: Encoded message.
    """

    device: str
    payload: bytes


class Presence(msgspec.Struct, kw_only=True):
    """State of a device's reports in the database, while a batch of messages is handled.

    Attributes:
        id: Its id.
        online, last_seen, boot, session, report_count, event_count, reported, reported_sequence,
        hardware_class, desired_sequence, desired_sent_at, standing, symptom: See `DeviceRow`;
            `reported` is None until the device reports within the batch.
        has_reported: Whether the device ever reported before the batch.
    """

    id: str
    online: bool
    last_seen: float | None
    boot: str
    session: str
    report_count: int
    event_count: int
    reported_sequence: int
    hardware_class: str
    desired_sequence: int
    desired_sent_at: float
    standing: str
    symptom: str
    has_reported: bool
    reported: str | None = None


_PRESENCE = (
    *("online", "last_seen", "boot", "session", "report_count", "event_count"),
    *("reported_sequence", "hardware_class", "desired_sent_at", "standing", "symptom"),
)
"""Columns that a report or an event changes, `reported` aside."""
_FIND = select(
    *(getattr(DeviceRow, name) for name in ("id", *_PRESENCE, "desired_sequence")),
    DeviceRow.reported.is_not(None).label("has_reported"),
).where(DeviceRow.id.in_(bindparam("names", expanding=True)))
_KEEP = update(DeviceRow).where(DeviceRow.id == bindparam("b_id"))
_KEEP_PRESENCE = _KEEP.values({name: bindparam(name) for name in _PRESENCE})
_KEEP_REPORT = _KEEP.values({name: bindparam(name) for name in (*_PRESENCE, "reported")})


def find_presence(session: Session, names: Iterable[str]) -> dict[str, Presence]:
    """Return the state of devices by id; unknown devices are missing."""
    rows = session.execute(_FIND, {"names": list(names)}).mappings()
    return {row["id"]: Presence(**row) for row in rows}


def keep_presence(session: Session, changed: Iterable[Presence]) -> None:
    """Write the changes that reports made."""
    said, unsaid = [], []
    for one in changed:
        values = {"b_id": one.id, **{name: getattr(one, name) for name in _PRESENCE}}
        if one.reported is not None:
            said.append({**values, "reported": one.reported})
        else:
            unsaid.append(values)
    for statement, rows in ((_KEEP_REPORT, said), (_KEEP_PRESENCE, unsaid)):
        if rows:
            session.connection().execute(statement, rows)


def note_report(row: Presence, reported: Reported, now: float) -> Literal["new", "stale"]:
    """Take down a report.

    A last will only marks the device offline: its last report stays known. The will of an older
    process, delivered after a report of a newer process, is ignored.

    Raises:
        TransferError: A sequence is not a number that a controller gave.
    """
    highest = min(MAX_SEQUENCE, row.desired_sequence + MAX_STEP)
    for sequence in _heard(reported):
        if not 0 <= sequence <= highest:
            raise TransferError(f"reported sequence {sequence} was never given")
    if not reported.online:
        if reported.boot and row.boot and reported.boot != row.boot:
            return "stale"
        row.online = False
        return "new"
    if not row.online:
        row.desired_sent_at = 0.0  # it has just come: answer at once
    row.online = True
    row.last_seen = now
    row.reported_sequence = reported.sequence
    row.reported = encode(reported).decode()
    row.standing, row.symptom = standing_of(reported), symptom_of(reported)
    if reported.facts is not None:
        row.hardware_class = reported.facts.hardware_class
    return "new"


def stored_report(session: Session, device: str) -> str | None:
    """Return a device's last report, encoded; None before the first."""
    return session.scalar(select(DeviceRow.reported).where(DeviceRow.id == device))


def needs_answer(row: Presence, reported: Reported, now: float) -> bool:
    """Return True if a device that has just reported may have to be determined something (see
    `answer`).
    """
    if max(_heard(reported)) > row.desired_sequence:
        return True
    if row.reported_sequence == 0 and row.desired_sent_at == 0.0:
        return True  # it has just come, and cannot tell whether anybody listens
    is_behind = row.reported_sequence != row.desired_sequence
    return is_behind and now - row.desired_sent_at >= ANSWER_AGAIN_AFTER_S


def answer(row: DeviceRow, now: float) -> Publication | None:
    """Return the order for a device that missed the newest order; else None.

    The order is not new: see `edgepack.fleet.rollouts.offers.overtake` for a device that received
    more orders than this database ever published.

    A new device without orders gets an empty order, as proof that a controller listens.
    """
    desired = wanted(row)
    if desired is None and row.reported_sequence == 0 and row.desired_sent_at == 0.0:
        row.desired_sent_at = now
        return Publication(device=row.id, payload=encode(Desired(sequence=0, models={})))
    if desired is None or row.reported_sequence == row.desired_sequence:
        return None
    if now - row.desired_sent_at < ANSWER_AGAIN_AFTER_S:
        return None
    row.desired_sent_at = now
    return Publication(device=row.id, payload=encode(desired))


def tell(row: DeviceRow, name: str, order: ModelOrder, now: float) -> Publication:
    """Order a release of a model from now on; leave the device's other models unchanged."""
    before = wanted(row)
    models = (before.models if before else {}) | {name: order}
    return _publish(row, order.sequence, models, before, now)


def tell_nothing(row: DeviceRow, name: str, now: float) -> Publication:
    """Return an order that drops a model: the device keeps the installed release."""
    before = wanted(row)
    models = {key: order for key, order in before.models.items() if key != name} if before else {}
    return _publish(row, next_sequence(row), models, before, now)


def ask_for_samples(row: DeviceRow, name: str, order: CaptureOrder, now: float) -> Publication:
    """Request samples of a model; the request replaces the model's request before."""
    before = wanted(row) or Desired(sequence=0, models={})
    asked = msgspec.structs.replace(before, captures=before.captures | {name: order})
    return _publish(row, next_sequence(row), before.models, asked, now)


def ask_for_log(row: DeviceRow, order: LogOrder | None, now: float) -> Publication:
    """Request log lines; None ends the request."""
    before = wanted(row) or Desired(sequence=0, models={})
    asked = msgspec.structs.replace(before, log=order)
    return _publish(row, next_sequence(row), before.models, asked, now)


def tell_again(row: DeviceRow, models: Mapping[str, ModelOrder], now: float) -> Publication:
    """State all that is wanted of a device once more, as the newest word."""
    sequence = max((next_sequence(row), *(order.sequence for order in models.values())))
    return _publish(row, sequence, models, wanted(row), now)


def _publish(
    row: DeviceRow,
    sequence: int,
    models: Mapping[str, ModelOrder],
    before: Desired | None,
    now: float,
) -> Publication:
    """Return the order with these models, and with the requests that still hold."""
    captures = before.captures.items() if before else ()
    log = before.log if before else None
    desired = Desired(
        sequence=sequence,
        models=dict(models),
        captures={name: order for name, order in captures if order.expires_at > now},
        log=log if log is not None and log.expires_at > now else None,
    )
    payload = encode(desired)
    row.desired = payload.decode()
    row.desired_sequence = desired.sequence
    row.desired_sent_at = now
    return Publication(device=row.id, payload=payload)


def wanted(row: DeviceRow) -> Desired | None:
    """Return all that was last wanted of a device; None when nothing ever was."""
    return decode(row.desired.encode(), Desired) if row.desired else None


def next_sequence(row: DeviceRow) -> int:
    """Return a number above all orders that the device received or acted on."""
    return max(row.desired_sequence, highest_heard(row)) + 1


def highest_heard(row: DeviceRow) -> int:
    """Return the highest sequence that the device received or applied, from its last report; 0 for
    none.
    """
    reported = last_report(row)
    return max(_heard(reported), default=0) if reported else 0


def _heard(reported: Reported) -> Iterator[int]:
    yield reported.sequence
    if reported.trust is not None:
        yield reported.trust.director
    for model in reported.models.values():
        yield from (model.sequence, model.acted_sequence)


def all_unsettled(session: Session) -> tuple[Publication, ...]:
    """Return the messages to publish again after a restart of broker or controller."""
    rows = session.execute(
        select(DeviceRow.id, DeviceRow.desired).where(
            DeviceRow.desired_sequence != DeviceRow.reported_sequence,
            DeviceRow.desired_sequence > 0,
        )
    )
    return tuple(Publication(device=name, payload=(said or "").encode()) for name, said in rows)


def last_report(row: DeviceRow) -> Reported | None:
    """Return the device's last report."""
    return decode(row.reported.encode(), Reported) if row.reported else None


def active(row: DeviceRow, name: str) -> Active | None:
    """Return the release of a model that a device serves, from its last report; else None."""
    reported = last_report(row)
    said = reported.models.get(name) if reported else None
    return said.active if said else None


def count_devices(session: Session) -> tuple[int, int]:
    """Return the numbers of enrolled and online devices."""
    enrolled = session.scalar(select(func.count()).select_from(DeviceRow)) or 0
    online = session.scalar(select(func.count()).where(DeviceRow.online.is_(True))) or 0
    return enrolled, online


def find_devices(session: Session, names: Sequence[str]) -> tuple[DeviceRow, ...]:
    """Return the rows of named devices.

    Raises:
        FleetError: A device is not enrolled.
    """
    rows = [session.get(DeviceRow, name) for name in names]
    missing = [name for name, row in zip(names, rows, strict=True) if row is None]
    if missing:
        raise FleetError(
            f"not enrolled: {', '.join(missing)}",
            remedy=f"edgepack fleet enroll {missing[0]} --group GROUP -o FOLDER",
        )
    return tuple(row for row in rows if row is not None)
