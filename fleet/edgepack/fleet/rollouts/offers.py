"""What a device is told when a rollout offers it a release, and when it takes that back."""

import logging

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.bundle.manifest import MANIFEST_FILE, SIGNATURE_FILE
from edgepack.fleet.database import devices
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.rollouts.rules import UNDECIDED
from edgepack.wire.messages import FileRef, RunModel

log = logging.getLogger(__name__)

DECIDES_WITHIN = 0.9
"""Share of the deadline after which a device that lacks inferences gives up: it says so before it
counts as silent."""


def name_of(number: int) -> str:
    """A rollout's id as people and devices see it."""
    return f"r{number}"


def offer(session: Session, rollout: RolloutRow, row: AssignmentRow, now: float) -> Publication:
    """Offers a rollout's release to a device, under the device's next sequence."""
    device = session.get_one(DeviceRow, row.device)
    release = session.get_one(ReleaseRow, rollout.digest)
    reported = devices.last_report(device)
    said = reported.models.get(release.name) if reported else None
    before = said.active.bundle if said and said.active else None
    row.state, row.offered_at = "OFFERED", now
    row.sequence = devices.next_sequence(device)
    row.before_digest = before.digest if before else ""
    order = _order(rollout, release, row.sequence, now)
    if rollout.takes_back:
        order = msgspec.structs.replace(order, rollback=True)
    return devices.tell(device, release.name, order, now)


def send_back(session: Session, rollout: RolloutRow, row: AssignmentRow, now: float) -> Publication:
    """Tells a device to be what it was before the rollout, if the fleet holds that release."""
    device = session.get_one(DeviceRow, row.device)
    row.state, row.decided_at = "WITHDRAWN", now
    before = session.get(ReleaseRow, row.before_digest) if row.before_digest else None
    if before is None or before.digest == rollout.digest:
        row.because = "the fleet holds no release that the device ran before; it keeps what it has"
        release = session.get_one(ReleaseRow, rollout.digest)
        return devices.tell_nothing(device, release.name, now)
    row.because = f"told to run {before.name} {before.version} again"
    sequence = devices.next_sequence(device)
    order = _order(rollout, before, sequence, now)
    # What is known to serve needs no proof.
    order = msgspec.structs.replace(order, rollback=True, min_inferences=0)
    return devices.tell(device, before.name, order, now)


def overtake(session: Session, row: DeviceRow, now: float) -> Publication | None:
    """Speaks above what a device has heard and this database never said; None when it heard none.

    So it is once a database was restored from an older copy: the device would not listen to what is
    said under lower numbers. What its open rollouts want of it is said again, each under a number
    of its own; what was decided stays as it is, since the device may be further by now.
    """
    desired = devices.wanted(row)
    if desired is None or devices.highest_heard(row) <= row.desired_sequence:
        return None
    open_parts = session.scalars(
        select(AssignmentRow).where(
            AssignmentRow.device == row.id, AssignmentRow.state.in_((*UNDECIDED, "SILENT"))
        )
    )
    parts = {part.sequence: part for part in open_parts}
    models = dict(desired.models)
    sequence = devices.next_sequence(row)
    for name, order in desired.models.items():
        if (part := parts.get(order.sequence)) is not None:
            part.sequence = sequence
            models[name] = msgspec.structs.replace(order, sequence=sequence)
            sequence += 1
    log.warning("device=%s has heard more than was said because=the database is older", row.id)
    return devices.tell_again(row, models, now)


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
        soak_s=rollout.soak_s,
        min_inferences=rollout.min_inferences,
        deadline_s=rollout.deadline_s * DECIDES_WITHIN,
        issued_at=now,
    )
