"""Storage of messages from devices: each kind of message has its handler.

A batch of messages is a transaction. The devices' state is read once, the handlers change the state
in memory, and the end of the batch writes the state with a few statements for any number of
messages.
"""

import logging
from collections.abc import Callable, Sequence

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError, TransferError
from edgepack.fleet.controller.inbox import Incoming
from edgepack.fleet.controller.verification import OverQuotaError, Seals, StaleError, Verifier
from edgepack.fleet.database import (
    device_logs,
    devices,
    latency,
    measurements,
    records,
    samples,
    standing,
)
from edgepack.fleet.database.devices import Presence, Publication
from edgepack.fleet.database.enrolment import enroll
from edgepack.fleet.database.schema import DeviceRow
from edgepack.fleet.enrolment.authority import Authority
from edgepack.fleet.identity.issue import issue
from edgepack.fleet.rollouts import execution, membership
from edgepack.fleet.rollouts.offers import overtake
from edgepack.wire.changes import apply_changes, is_changes
from edgepack.wire.messages import decode
from edgepack.wire.reports import Changes, Renewal, Reported, Trusted
from edgepack.wire.telemetry import Event, Telemetry
from edgepack.wire.topics import UpKind
from edgepack.wire.transfers import LogLines, Need, Piece, Taken

log = logging.getLogger(__name__)

MAX_STRANGERS = 20_000
"""Devices that are not enrolled and are named in the log, once each."""
AUTO_GROUP = "auto"


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a single transaction, and the resulting changes.

    Attributes:
        session: The transaction.
        now: Seconds since the epoch.
        value_s: Seconds of a device's value for gates.
        known: The devices that are enrolled, by id.
        changed: Devices that reported, by id.
        heard: Their reports in order, without last wills.
        events, telemetry: Events and telemetry, each with its device.
        needs: Needs of devices, each with its message.
        pieces: Pieces of samples, each with its device.
        logs: Log lines, each with its device.
        samples_taken: Answers to devices that sent pieces, by id.
        trusting: Metadata versions that devices with a root trust, by id.
        renewing: Certificate requests of devices whose certificates expire soon, by id.
        first: Devices that reported for the first time.
        unanswered: Devices that may have to be determined something.
        publications: Messages to publish after the commit.
        seals: Verifies the messages.
        added: Telemetry that was taken.
    """

    session: Session
    now: float
    value_s: float
    known: dict[str, Presence]
    seals: Seals
    changed: dict[str, Presence] = {}
    heard: list[tuple[str, Reported]] = []
    events: list[tuple[str, Event]] = []
    telemetry: list[tuple[str, Telemetry]] = []
    needs: list[tuple[Incoming, Need]] = []
    pieces: list[tuple[str, Piece]] = []
    logs: list[tuple[str, LogLines]] = []
    samples_taken: dict[str, Taken] = {}
    trusting: dict[str, Trusted] = {}
    renewing: dict[str, Renewal] = {}
    first: set[str] = set()
    unanswered: set[str] = set()
    publications: list[Publication] = []
    added: list[latency.Added] = []

    @property
    def dropped(self) -> int:
        """Inferences of telemetry that was not taken: of devices with too many sources."""
        told = sum(window.latency.count for _, window in self.telemetry)
        return told - sum(one.window.latency.count for one in self.added)


Handler = Callable[[Batch, Presence, bytes], bool]
"""Takes a message that a device signed; whether it was news."""


class Intake:
    """Finds the handler and the device of a message.

    Args:
        verifier: Verifies messages of devices.
        open_authority: Opens the authority that signs devices' certificates.
        admits: Whether a device may send this number of further messages of a kind; counts the
            messages.
        auto_enroll: Takes in any device that reports (only with the embedded broker).
        value_s: Seconds of a device's value for gates.
    """

    def __init__(
        self,
        verifier: Verifier,
        open_authority: Callable[[], Authority],
        admits: Callable[[Incoming, int], bool],
        *,
        auto_enroll: bool,
        value_s: float,
    ) -> None:
        self._value_s = value_s
        self._verifier, self._open_authority = verifier, open_authority
        self._admits, self._auto_enroll = admits, auto_enroll
        self._strangers: set[str] = set()

    def begin(self, session: Session, incoming: Sequence[Incoming], now: float) -> Batch:
        """Read the stored state of a batch's devices."""
        known = devices.find_presence(session, {message.device for message in incoming})
        seals = self._verifier.begin(session, incoming, now)
        return Batch(session=session, now=now, value_s=self._value_s, known=known, seals=seals)

    def take(self, batch: Batch, message: Incoming) -> str:
        """Handle a message.

        Returns:
            The outcome: the message's kind, `greeted`, `stale` or `not_enrolled`.

        Raises:
            RefusalError: The device did not sign the message, or the message is not new.
            TransferError: The message is malformed.
        """
        presence = batch.known.get(message.device)
        if presence is None:
            if not self._auto_enroll or message.kind != "reported":
                return self._ignore(message.device, "it is not enrolled")
            try:
                presence = self._take_in(batch, message)
            except FleetError as error:
                return self._ignore(message.device, error.problem)
        if message.kind == "need":
            return _take_need(batch, message)
        session = presence.session
        try:
            contents = batch.seals.open(
                presence, message, lambda count: self._admits(message, count - message.is_charged)
            )
        except StaleError:
            return "stale"
        except OverQuotaError:
            return "over_quota"
        finally:
            if presence.session != session:
                batch.changed[presence.id] = presence
        if not contents:
            return "greeted"
        batch.changed[presence.id] = presence  # Numbers are used up, whatever the content is.
        return self._handle(batch, presence, message.kind, contents)

    def _handle(
        self, batch: Batch, presence: Presence, kind: UpKind, contents: Sequence[bytes]
    ) -> str:
        """Handle each message of a signed batch; a malformed message does not stop the others."""
        outcome, problem = str(kind), None
        for content in contents:
            try:
                if not HANDLERS[kind](batch, presence, content):
                    outcome = "stale"
            except TransferError as error:
                problem = error
        if problem is not None:
            _leave_gap(presence, kind)
            raise problem
        return outcome

    def _take_in(self, batch: Batch, message: Incoming) -> Presence:
        """Enrol a device by its first report: the key that signed the report is its key."""
        request = batch.seals.introduce(message)
        authority = self._open_authority()
        authority.key_id_of(request)  # A request that is none enrols nobody.
        row = enroll(batch.session, device=message.device, group=AUTO_GROUP, now=batch.now)
        batch.publications.extend(membership.join(batch.session, row, batch.now))
        issue(batch.session, authority, row, request, batch.now)
        batch.session.flush()
        batch.known.update(devices.find_presence(batch.session, (row.id,)))
        return batch.known[row.id]

    def _ignore(self, device: str, because: str) -> str:
        if device not in self._strangers and len(self._strangers) < MAX_STRANGERS:
            self._strangers.add(device)
            log.warning("device=%s ignored because=%s", device, because)
        return "not_enrolled"


def finish(batch: Batch) -> bool:
    """Write the batch, and find the devices to answer.

    1. Reports, events, telemetry, samples and log lines are written.
    2. Rollouts learn of the reports.
    3. A device that reported for the first time joins: now its facts are known, which a rollout
       may be for.
    4. Devices that did not receive their newest order get the order again.

    Returns:
        Whether a rollout may have something to do now.
    """
    # 1.
    devices.keep_presence(batch.session, batch.changed.values())
    standing.keep_models(batch.session, batch.heard)
    records.add_device_events(batch.session, batch.events, batch.now)
    taken = latency.add_telemetry(batch.session, batch.telemetry, batch.now)
    windows = [(one.device, one.window) for one in taken]
    measurements.add_windows(batch.session, windows, value_s=batch.value_s, now=batch.now)
    batch.added.extend(taken)
    batch.seals.keep(batch.session)
    batch.samples_taken.update(samples.add_pieces(batch.session, batch.pieces, batch.now))
    batch.publications.extend(device_logs.add(batch.session, batch.logs, batch.now))
    # 2.
    moved = execution.note_reports(batch.session, batch.heard, batch.now)
    if names := batch.first | batch.unanswered | moved.passed:
        query = select(DeviceRow).where(DeviceRow.id.in_(names)).order_by(DeviceRow.id)
        for row in batch.session.scalars(query.execution_options(populate_existing=True)).all():
            # 3.
            if row.id in batch.first:
                batch.publications.extend(membership.join(batch.session, row, batch.now))
            # 4.
            said = overtake(batch.session, row, batch.now) or devices.answer(row, batch.now)
            if said is not None:
                batch.publications.append(said)
    return moved.has_decided or bool(taken) or bool(batch.first)


def _leave_gap(presence: Presence, kind: UpKind) -> None:
    """Refuse changes that build on a dropped report, until the whole report arrives."""
    if kind == "reported":
        presence.report_count -= 1


def _take_report(batch: Batch, presence: Presence, content: bytes) -> bool:
    if is_changes(content):
        before = presence.reported or devices.stored_report(batch.session, presence.id)
        if not before:
            raise TransferError("changes of a report that is not known")
        reported = apply_changes(before.encode(), decode(content, Changes))
    else:
        reported = decode(content, Reported)
    is_first = not presence.has_reported and presence.reported is None
    if devices.note_report(presence, reported, batch.now) == "stale":
        return False
    if is_first and reported.online:
        batch.first.add(presence.id)
    if reported.online:
        batch.heard.append((presence.id, reported))
        if reported.trust is not None:
            batch.trusting[presence.id] = reported.trust
        if reported.renewal is not None:
            batch.renewing[presence.id] = reported.renewal
        if devices.needs_answer(presence, reported, batch.now):
            batch.unanswered.add(presence.id)
    return True


def _take_need(batch: Batch, message: Incoming) -> str:
    batch.needs.append((message, decode(message.payload, Need)))
    return message.kind


def _take_telemetry(batch: Batch, presence: Presence, content: bytes) -> bool:
    telemetry = decode(content, Telemetry)
    latency.check_window(telemetry)
    batch.seals.count(presence, telemetry)
    batch.telemetry.append((presence.id, telemetry))
    return True


def _take_event(batch: Batch, presence: Presence, content: bytes) -> bool:
    batch.events.append((presence.id, decode(content, Event)))
    return True


def _take_piece(batch: Batch, presence: Presence, content: bytes) -> bool:
    batch.pieces.append((presence.id, decode(content, Piece)))
    return True


def _take_log(batch: Batch, presence: Presence, content: bytes) -> bool:
    batch.logs.append((presence.id, decode(content, LogLines)))
    return True


HANDLERS: dict[UpKind, Handler] = {
    "reported": _take_report,
    "telemetry": _take_telemetry,
    "event": _take_event,
    "sample": _take_piece,
    "log": _take_log,
}
