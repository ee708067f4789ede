"""Taking down what devices say: each kind of message has its handler."""

import logging
from collections.abc import Callable

import msgspec
from sqlalchemy.orm import Session

from edgepack.fleet.controller.inbox import Incoming
from edgepack.fleet.database import devices, records
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.enrolment import enroll
from edgepack.fleet.database.schema import DeviceRow
from edgepack.fleet.rollouts import execution, membership
from edgepack.fleet.rollouts.offers import overtake
from edgepack.wire import messages
from edgepack.wire.topics import UpKind

log = logging.getLogger(__name__)

MAX_STRANGERS = 20_000
"""Devices that are not enrolled and are named in the log, once each."""
AUTO_GROUP = "auto"


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that one transaction takes down, and what follows from them.

    Attributes:
        session: The transaction.
        now: Seconds since the epoch.
        publications: To publish once it is durable.
        needs: For the depot, each with its device.
    """

    session: Session
    now: float
    publications: list[Publication] = msgspec.field(default_factory=list)
    needs: list[tuple[str, messages.Need]] = msgspec.field(default_factory=list)


Handler = Callable[[Batch, DeviceRow, bytes], bool]
"""Takes down what a device said; whether it was news."""


class Intake:
    """Finds the handler of a message, and the device that it is of.

    Args:
        auto_enroll: Takes in any device that reports (only with the embedded broker).
    """

    def __init__(self, *, auto_enroll: bool) -> None:
        self._auto_enroll = auto_enroll
        self._strangers: set[str] = set()

    def take(self, batch: Batch, message: Incoming) -> str:
        """Takes down one message.

        Returns:
            What became of it: its kind, `stale` or `not_enrolled`.

        Raises:
            TransferError: It is malformed.
        """
        row = batch.session.get(DeviceRow, message.device)
        if row is None:
            if not self._auto_enroll or message.kind != "reported":
                return self._ignore(message.device)
            row = _take_in(batch, message)
        return message.kind if HANDLERS[message.kind](batch, row, message.payload) else "stale"

    def _ignore(self, device: str) -> str:
        if device not in self._strangers and len(self._strangers) < MAX_STRANGERS:
            self._strangers.add(device)
            log.warning("device=%s ignored because=it is not enrolled", device)
        return "not_enrolled"


def _take_in(batch: Batch, message: Incoming) -> DeviceRow:
    messages.decode(message.payload, messages.Reported)  # Only one that knows what to say.
    row = enroll(batch.session, device=message.device, group=AUTO_GROUP, now=batch.now)
    batch.publications.extend(membership.join(batch.session, row, batch.now))
    return row


def _take_report(batch: Batch, row: DeviceRow, payload: bytes) -> bool:
    reported = messages.decode(payload, messages.Reported)
    is_first = row.reported is None
    if devices.note_report(row, reported, batch.now) == "stale":
        return False
    if reported.online:
        if is_first:  # now its facts are known, which a rollout may be for
            batch.publications.extend(membership.join(batch.session, row, batch.now))
        execution.note_report(batch.session, row, reported, batch.now)
        publication = overtake(batch.session, row, batch.now) or devices.answer(row, batch.now)
        if publication is not None:
            batch.publications.append(publication)
    return True


def _take_need(batch: Batch, row: DeviceRow, payload: bytes) -> bool:
    batch.needs.append((row.id, messages.decode(payload, messages.Need)))
    return True


def _take_telemetry(batch: Batch, row: DeviceRow, payload: bytes) -> bool:
    telemetry = messages.decode(payload, messages.Telemetry)
    records.add_telemetry(batch.session, row, telemetry, batch.now)
    return True


def _take_event(batch: Batch, row: DeviceRow, payload: bytes) -> bool:
    event = messages.decode(payload, messages.Event)
    records.add_device_event(batch.session, row.id, event, batch.now)
    return True


HANDLERS: dict[UpKind, Handler] = {
    "reported": _take_report,
    "need": _take_need,
    "telemetry": _take_telemetry,
    "event": _take_event,
}
