"""Devices in the database: enrolling them, and taking down what they say of themselves."""

import logging
from collections.abc import Sequence
from typing import Literal

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError, TransferError
from edgepack.fleet.database.schema import DeviceRow
from edgepack.fleet.documents.devices import CONTROLLER, DeviceView
from edgepack.text import natural_order
from edgepack.wire import topics
from edgepack.wire.messages import Desired, Reported, decode, encode

log = logging.getLogger(__name__)

MAX_SEQUENCE = 2**53
ANSWER_AGAIN_AFTER_S = 10.0
"""A device that keeps reporting an older sequence is told again so often at most."""


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """A retained `desired` to publish once the transaction is durable.

    Attributes:
        device: Whose.
        payload: Encoded message; empty takes a retained one away.
    """

    device: str
    payload: bytes


def enroll(session: Session, *, device: str, group: str, now: float) -> DeviceRow:
    """Takes a device into the fleet, or moves it to another group.

    Raises:
        FleetError: Device or group cannot be such a name.
    """
    try:
        topics.check_name(device, "device id")
        topics.check_name(group, "group")
    except ValueError as error:
        raise FleetError(
            str(error), remedy="edgepack fleet enroll cam-7 --group cameras"
        ) from error
    if device == CONTROLLER:
        raise FleetError(f"{CONTROLLER!r} is the controller's own name", remedy="choose another id")
    row = session.get(DeviceRow, device)
    if row is None:
        row = DeviceRow(id=device, group=group, enrolled_at=now)
        session.add(row)
        session.flush()
        log.info("device=%s enrolled group=%s", device, group)
    elif row.group != group:
        log.info("device=%s from=%s to=%s because=enrolled again", device, row.group, group)
        row.group = group
    return row


def note_report(
    session: Session, row: DeviceRow, reported: Reported, now: float
) -> Literal["new", "stale"]:
    """Takes down a report, unless a newer one of the same process is there already.

    A last will only marks the device offline: what it said before stays known. The will of an
    older process, delivered after a newer one reported, says nothing.

    Raises:
        TransferError: The sequence is no number that a controller gave.
    """
    if not 0 <= reported.sequence <= MAX_SEQUENCE or not 0 <= reported.count <= MAX_SEQUENCE:
        raise TransferError(f"reported sequence {reported.sequence} was never given")
    if not reported.online:
        if reported.boot and row.boot and reported.boot != row.boot:
            return "stale"
        row.online = False
        return "new"
    if reported.boot == row.boot and reported.count < row.report_count:
        return "stale"
    if reported.boot != row.boot or not row.online:
        row.desired_sent_at = 0.0  # it has just come: answer at once
    row.online = True
    row.last_seen = now
    row.boot = reported.boot
    row.report_count = reported.count
    row.reported_sequence = reported.sequence
    row.reported = encode(reported).decode()
    if reported.facts is not None:
        row.hardware_class = reported.facts.hardware_class
    return "new"


def answer(row: DeviceRow, now: float) -> Publication | None:
    """What to tell a device whose report differs from what is wanted; None when it does not."""
    if row.desired is None or row.reported_sequence == row.desired_sequence:
        return None
    if now - row.desired_sent_at < ANSWER_AGAIN_AFTER_S:
        return None
    if row.reported_sequence > row.desired_sequence:
        # It acted on a sequence that this database does not know of (it was restored from an
        # older copy): speak above it, or the device would not listen.
        wanted = msgspec.structs.replace(
            decode(row.desired.encode(), Desired), sequence=row.reported_sequence + 1
        )
        row.desired_sequence = wanted.sequence
        row.desired = encode(wanted).decode()
    row.desired_sent_at = now
    return Publication(device=row.id, payload=row.desired.encode())


def tell(row: DeviceRow, desired: Desired, now: float) -> Publication:
    """Makes a message what is wanted of a device from now on."""
    row.desired = encode(desired).decode()
    row.desired_sequence = desired.sequence
    row.desired_sent_at = now
    return Publication(device=row.id, payload=row.desired.encode())


def tell_nothing(row: DeviceRow) -> Publication:
    """Wants nothing of a device any more: a retained message is taken away."""
    row.desired = None
    row.desired_sequence += 1
    return Publication(device=row.id, payload=b"")


def next_sequence(row: DeviceRow) -> int:
    """Above all that the device was told or acted on."""
    return max(row.desired_sequence, row.reported_sequence) + 1


def all_unsettled(session: Session) -> tuple[Publication, ...]:
    """What to publish again after a broker or a controller restarted and may have forgotten."""
    rows = session.scalars(
        select(DeviceRow).where(DeviceRow.desired_sequence != DeviceRow.reported_sequence)
    )
    return tuple(
        Publication(device=row.id, payload=(row.desired or "").encode())
        for row in rows
        if row.desired_sequence > 0
    )


def last_report(row: DeviceRow) -> Reported | None:
    """What the device last said of itself."""
    return decode(row.reported.encode(), Reported) if row.reported else None


def simulated_providers(reported: Reported | None) -> frozenset[str]:
    """The providers that only simulate their hardware on a device, by what it said."""
    facts = reported.facts if reported else None
    return frozenset(p.name for p in facts.providers if p.is_simulator) if facts else frozenset()


def count_devices(session: Session) -> tuple[int, int]:
    """Enrolled devices, and those online."""
    enrolled = session.scalar(select(func.count()).select_from(DeviceRow)) or 0
    online = session.scalar(select(func.count()).where(DeviceRow.online.is_(True))) or 0
    return enrolled, online


def list_devices(session: Session, group: str = "") -> tuple[DeviceView, ...]:
    """All devices, or those of a group, by id."""
    query = select(DeviceRow)
    if group:
        query = query.where(DeviceRow.group == group)
    rows = sorted(session.scalars(query), key=lambda row: natural_order(row.id))
    return tuple(_view(row) for row in rows)


def show_device(session: Session, device: str) -> DeviceView:
    """One device.

    Raises:
        FleetError: It is not enrolled.
    """
    return _view(find_devices(session, (device,))[0])


def _view(row: DeviceRow) -> DeviceView:
    reported = last_report(row)
    active = reported.active if reported else None
    wanted = decode(row.desired.encode(), Desired) if row.desired else None
    return DeviceView(
        device=row.id,
        group=row.group,
        online=row.online,
        last_seen=row.last_seen,
        hardware_class=row.hardware_class,
        state=reported.state if reported else "",
        because=reported.because if reported else "",
        progress=reported.progress if reported else 0.0,
        active=active.bundle if active else None,
        variant=active.choice.chosen if active else "",
        provider=active.choice.provider if active else "",
        is_simulator=active is not None and active.choice.provider in simulated_providers(reported),
        is_fallback=active.choice.is_fallback if active else False,
        choice_because=active.choice.because if active else "",
        wanted=wanted.bundle if wanted else None,
        rollout=wanted.rollout if wanted else "",
    )


def find_devices(session: Session, names: Sequence[str]) -> tuple[DeviceRow, ...]:
    """The rows of named devices.

    Raises:
        FleetError: One of them is not enrolled.
    """
    rows = [session.get(DeviceRow, name) for name in names]
    missing = [name for name, row in zip(names, rows, strict=True) if row is None]
    if missing:
        raise FleetError(
            f"not enrolled: {', '.join(missing)}",
            remedy=f"edgepack fleet enroll {missing[0]} --group GROUP -o FOLDER",
        )
    return tuple(row for row in rows if row is not None)
