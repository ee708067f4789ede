"""Offering a release once more to devices that failed it or stayed silent."""

from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import assignments
from edgepack.fleet.database.assignments import Note
from edgepack.fleet.database.schema import ReleaseRow, RolloutRow
from edgepack.fleet.rollouts import execution
from edgepack.fleet.rollouts.offers import name_of
from edgepack.fleet.rollouts.preview import open_rollouts
from edgepack.text import counted

AGAIN = ("FAILED", "SILENT")


def retry(session: Session, rollout: RolloutRow, now: float) -> None:
    """Has all devices that failed wait for the release again; it goes on where it was over.

    Devices that are in another rollout of the model by now stay out of it.

    Raises:
        FleetError: It was aborted, or no device of it can try again.
    """
    name = name_of(rollout.number)
    model = session.get_one(ReleaseRow, rollout.digest).name
    others = open_rollouts(session, model)
    parts = [
        part
        for part in assignments.of_rollout(session, rollout.number, AGAIN)
        if others.get(part.device, rollout).number == rollout.number
    ]
    if not parts and rollout.state != "ABORTED":  # which is refused with its own words below
        raise FleetError(
            f"no device of rollout {name} failed or stayed silent and is free to try again",
            remedy=f"edgepack rollout status {name}",
        )
    because = f"{counted(len(parts), 'device')} shall try again"
    numbers: execution.Numbers = {"retried": len(parts)}
    execution.change(session, rollout, "retry", because, now, numbers)
    rollout.accepted_failures, rollout.evidence_since = 0, None
    notes = [Note(part, "WAITING", f"again, after: {part.because}", None) for part in parts]
    assignments.note(session, notes)
