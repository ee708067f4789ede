"""Orders to devices for offers of a release and for withdrawn offers."""

import logging
from collections.abc import Iterator, Sequence

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE
from edgepack.fleet.database import assignments, devices, measurements
from edgepack.fleet.database.assignments import Assignment, SentOffer, StateChange
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.measurements import Offered, Place
from edgepack.fleet.database.schema import DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.documents.gates import BY_NAME
from edgepack.fleet.rollouts.counting import UNDECIDED
from edgepack.wire.orders import FileRef, ModelOrder, RunModel
from edgepack.wire.reports import ReportedModel

log = logging.getLogger(__name__)

READ_AT_ONCE = 500
"""Devices whose rows are read by one query."""
DECIDES_WITHIN = 0.9
"""Share of the deadline after which a device that lacks inferences gives up: it says so before it
counts as silent."""


def name_of(number: int) -> str:
    """Return a rollout's public id."""
    return f"r{number}"


def offer(
    session: Session, rollout: RolloutRow, chosen: Sequence[Assignment], now: float
) -> tuple[Publication, ...]:
    """Offer a rollout's release to devices, to each under its own next sequence."""
    release = session.get_one(ReleaseRow, rollout.digest)
    offers, publications, offered = [], [], []
    for assignment, device in _with_devices(session, chosen):
        before = devices.active(device, release.name)
        sequence = devices.next_sequence(device)
        offers.append(SentOffer(assignment, sequence, now, before.bundle.digest if before else ""))
        place = Place(assignment.rollout, assignment.wave, assignment.hardware_class)
        choice = before.choice if before else None
        before_digest = offers[-1].before_digest
        offered.append(Offered(device.id, place, before_digest, choice))
        order = _order(rollout, release, sequence, now)
        if rollout.takes_back:
            order = msgspec.structs.replace(order, rollback=True, shadow=None)
        publications.append(devices.tell(device, release.name, order, now))
    assignments.offer(session, offers)
    if not rollout.takes_back:
        measurements.note_offered(session, release.digest, offered, rollout.settings.look_s)
    return tuple(publications)


def send_back(
    session: Session,
    rollout: RolloutRow,
    chosen: Sequence[Assignment],
    now: float,
    reason: str = "",
) -> tuple[Publication, ...]:
    """Order devices to run their previous release, if the fleet holds that release.

    A device that has a newer order by now, from another rollout, keeps that order. The reason is
    noted with each part.
    """
    release = session.get_one(ReleaseRow, rollout.digest)
    notes, publications = [], []
    for assignment, device in _with_devices(session, chosen):
        desired = devices.wanted(device)
        newest = desired.models.get(release.name) if desired else None
        if newest is not None and newest.sequence != assignment.sequence:
            notes.append(StateChange(assignment, "WITHDRAWN", "has a newer order", now))
            continue
        before = (
            session.get(ReleaseRow, assignment.before_digest) if assignment.before_digest else None
        )
        if before is None or before.digest == rollout.digest:
            because = "the fleet holds no release that the device ran before; it keeps what it has"
            publications.append(devices.tell_nothing(device, release.name, now))
        else:
            because = f"told to run {before.name} {before.version} again"
            order = _order(rollout, before, devices.next_sequence(device), now)
            # What is known to serve needs no proof.
            order = msgspec.structs.replace(order, rollback=True, min_inferences=0, shadow=None)
            publications.append(devices.tell(device, before.name, order, now))
        because = f"{reason}; {because}" if reason else because
        notes.append(StateChange(assignment, "WITHDRAWN", because, now))
    assignments.record(session, notes)
    return tuple(publications)


def _with_devices(
    session: Session, chosen: Sequence[Assignment]
) -> Iterator[tuple[Assignment, DeviceRow]]:
    for first in range(0, len(chosen), READ_AT_ONCE):
        some = chosen[first : first + READ_AT_ONCE]
        rows = session.scalars(
            select(DeviceRow).where(DeviceRow.id.in_([it.device for it in some]))
        )
        by_id = {row.id: row for row in rows}
        yield from ((assignment, by_id[assignment.device]) for assignment in some)


def overtake(session: Session, row: DeviceRow, now: float) -> Publication | None:
    """Move the order's number above the numbers that the device acted on and that this database
    gave to other orders.

    This happens after a database was restored from an older copy: the device ignores orders with
    numbers that were used already. Its open rollouts are ordered again, each with a new number;
    decisions stay unchanged, since the device may be further.

    Returns:
        None when the device can receive all its orders.
    """
    desired, reported = devices.wanted(row), devices.last_report(row)
    if desired is None or reported is None:
        return None
    is_behind = devices.highest_heard(row) > row.desired_sequence
    passed = [
        name
        for name, order in desired.models.items()
        if is_behind or _has_passed(reported.models.get(name), order)
    ]
    if not passed and not is_behind:
        return None
    models = dict(desired.models)
    sequence = devices.next_sequence(row)
    open_assignments = assignments.of_devices(session, (row.id,), (*UNDECIDED, "SILENT"))
    by_sequence = {assignment.sequence: assignment for assignment in open_assignments}
    for name in passed:
        order = models[name]
        assignment = by_sequence.get(order.sequence)
        said = reported.models.get(name)
        is_other = said is not None and said.sequence == order.sequence
        if assignment is not None and (is_behind or is_other or assignment.state == "OFFERED"):
            assignments.renumber(session, assignment, sequence)
            models[name] = msgspec.structs.replace(order, sequence=sequence)
            sequence += 1
    if not is_behind and models == desired.models:
        return None
    log.warning(
        "device=%s has a newer order than the database because=the database is older", row.id
    )
    return devices.tell_again(row, models, now)


def speaks_of(said: ReportedModel, sequence: int | None, digest: str) -> bool:
    """Return True if a device refers to an order: its number, and its bundle if the device names a
    bundle.
    """
    is_of_bundle = said.target is None or said.target.digest == digest
    return said.sequence == sequence and is_of_bundle


def _has_passed(said: ReportedModel | None, order: ModelOrder) -> bool:
    if said is None or said.acted_sequence < order.sequence:
        return False
    digest = order.bundle.digest if isinstance(order, RunModel) else ""
    return not speaks_of(said, order.sequence, digest)


def _order(rollout: RolloutRow, release: ReleaseRow, sequence: int, now: float) -> RunModel:
    return RunModel(
        sequence=sequence,
        rollout=name_of(rollout.number),
        bundle=release.bundle,
        manifest=FileRef(
            path=MANIFEST_FILE,
            size_bytes=release.manifest_bytes,
            sha256=release.manifest_sha256,
        ),
        signature=FileRef(
            path=SIGNATURE_FILE, size_bytes=release.signature_bytes, sha256=release.signature_sha256
        ),
        soak_s=rollout.settings.soak_s,
        min_inferences=rollout.settings.min_inferences,
        deadline_s=rollout.settings.deadline_s * DECIDES_WITHIN,
        max_slowdown=_max_slowdown(rollout),
        shadow=rollout.settings.shadow_differs if rollout.settings.shadow else None,
        issued_at=now,
    )


def _max_slowdown(rollout: RolloutRow) -> float | None:
    """Return the slowdown threshold of the gate `p95`; None if the gate is off."""
    return rollout.settings.gates.get("p95", BY_NAME["p95"].threshold)
