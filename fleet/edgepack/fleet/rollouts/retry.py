"""Second offer of a release to devices that failed, stayed silent or were set aside."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import assignments
from edgepack.fleet.database.assignments import StateChange
from edgepack.fleet.database.schema import AssignmentRow, ReleaseRow, RolloutRow
from edgepack.fleet.rollouts import execution
from edgepack.fleet.rollouts.offers import name_of
from edgepack.fleet.rollouts.preview import open_rollouts
from edgepack.text import counted

AGAIN = ("FAILED", "SILENT")


def retry(session: Session, rollout: RolloutRow, now: float) -> None:
    """Return all failed devices to waiting; a finished rollout continues.

    Devices are left out if another rollout of the model has the devices by now, or if the devices
    committed a later rollout's release.

    Raises:
        FleetError: The rollout was aborted, or no device can try again.
    """
    name = name_of(rollout.number)
    model = session.get_one(ReleaseRow, rollout.digest).name
    others = {*open_rollouts(session, model, but=rollout.number)}
    others |= _committed_later(session, model, rollout.number)
    aside = {one.wanted for one in rollout.set_aside}
    retried = [
        assignment
        for assignment in assignments.of_rollout(session, rollout.number, (*AGAIN, "WITHDRAWN"))
        if assignment.device not in others
        and (assignment.state in AGAIN or assignment.device in aside)
    ]
    if not retried and rollout.state != "ABORTED":  # which is refused with its own words below
        raise FleetError(
            f"no device of rollout {name} failed or stayed silent and is free to try again",
            remedy=f"edgepack rollout status {name}",
        )
    because = f"{counted(len(retried), 'device')} shall try again"
    numbers: execution.Numbers = {"retried": len(retried)}
    execution.change(session, rollout, "retry", because, now, numbers)
    rollout.accepted_failures, rollout.evidence_since = 0, None
    notes = [
        StateChange(assignment, "WAITING", f"again, after: {assignment.because}", None)
        for assignment in retried
    ]
    assignments.record(session, notes)


def _committed_later(session: Session, model: str, number: int) -> frozenset[str]:
    """Return the devices that committed a release of a later rollout of the model."""
    query = (
        select(AssignmentRow.device)
        .join(RolloutRow, AssignmentRow.rollout == RolloutRow.number)
        .join(ReleaseRow, RolloutRow.digest == ReleaseRow.digest)
        .where(
            AssignmentRow.state == "COMMITTED",
            AssignmentRow.rollout > number,
            ReleaseRow.name == model,
        )
    )
    return frozenset(session.scalars(query))
