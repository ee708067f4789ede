"""Taking devices over from older rollouts of the same model."""

from collections import defaultdict
from collections.abc import Mapping

from sqlalchemy.orm import Session

from edgepack.fleet.database import assignments
from edgepack.fleet.database.assignments import StateChange
from edgepack.fleet.database.schema import RolloutRow
from edgepack.fleet.rollouts import counting, execution, judgement
from edgepack.fleet.rollouts.offers import name_of
from edgepack.text import counted


def take_over(
    session: Session, newer: RolloutRow, from_older: Mapping[str, RolloutRow], now: float
) -> None:
    """Take devices out of their older rollouts, and end rollouts without remaining devices.

    A device that installs the older release finishes the installation, or gets the newer order
    first.

    Args:
        session: The transaction.
        newer: The rollout that takes the devices over.
        from_older: By device: its older rollout.
        now: Seconds since the epoch.
    """
    older = {rollout.number: rollout for rollout in from_older.values()}
    taken: dict[int, set[str]] = defaultdict(set)
    for device, rollout in from_older.items():
        taken[rollout.number].add(device)
    name = name_of(newer.number)
    for number, rollout in older.items():
        states = {"WAITING", *execution.OPEN}
        withdrawn = assignments.of_rollout(session, number, states)
        because = f"superseded by {name}"
        changes = [
            StateChange(assignment, "WITHDRAWN", because, now)
            for assignment in withdrawn
            if assignment.device in taken[number]
        ]
        assignments.record(session, changes)
        told = f"{counted(len(taken[number]), 'device')} taken over by {name}"
        if counting.count(judgement.counts_of(session, rollout), {"WAITING", *counting.UNDECIDED}):
            rollout.because, rollout.changed_at = told, now
            numbers: execution.Numbers = {"devices": len(taken[number])}
            execution.note_act(session, rollout, "rollout.supersede", told, numbers, now)
        else:
            execution.change(session, rollout, "supersede", f"{because}: {told}", now)
