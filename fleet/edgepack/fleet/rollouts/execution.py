"""Rollouts in the database: pausing, resuming, aborting, heeding reports.

`membership.py` decides about a rollout's devices, `steps.py` carries out the rules. Every function
works inside the caller's transaction and returns messages to publish after the commit.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import assignments, audit, measurements, records
from edgepack.fleet.database.assignments import Assignment, StateChange
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.measurements import Committed
from edgepack.fleet.database.schema import ReleaseRow, RolloutRow
from edgepack.fleet.documents.audit import Action, Number
from edgepack.fleet.rollouts import counting, decision, judgement, rules
from edgepack.fleet.rollouts.offers import name_of, send_back, speaks_of
from edgepack.text import counted
from edgepack.wire.reports import Reported, ReportedModel

log = logging.getLogger(__name__)

Numbers = dict[str, Number]

_ACTIONS: dict[rules.RolloutEvent, Action] = {
    "pause": "rollout.pause",
    "stop": "rollout.pause",
    "resume": "rollout.resume",
    "retry": "rollout.retry",
    "supersede": "rollout.supersede",
    "finish": "rollout.finish",
    "abort": "rollout.abort",
}
OPEN = counting.UNDECIDED | {"SILENT"}
"""States of an assignment that a report may still change."""


class Moved(NamedTuple):
    """Result of reports.

    Attributes:
        passed: Devices beyond the number of their order that do not report the order.
        has_decided: Whether a device has decided, so that a step may be due.
    """

    passed: frozenset[str] = frozenset()
    has_decided: bool = False


def find(session: Session, rollout: str) -> RolloutRow:
    """Return the rollout of that id.

    Raises:
        FleetError: There is none.
    """
    number = rollout.removeprefix("r")
    row = session.get(RolloutRow, int(number)) if number.isdecimal() and len(number) < 10 else None
    if row is None:
        raise FleetError(f"there is no rollout {rollout}", remedy="edgepack rollout list")
    return row


def pause(session: Session, rollout: RolloutRow, now: float) -> None:
    """Offer the release to no further device; devices with a running installation continue."""
    change(session, rollout, "pause", "paused by a person", now)


def resume(session: Session, rollout: RolloutRow, now: float) -> None:
    """Resume; accept the breaches so far and the failures of the current wave.

    Hardware classes that are held back continue, too.
    """
    judged = judgement.judge(session, rollout, now)
    current = counting.total(judged.classes)[max(rollout.wave, 0) : rollout.wave + 1]
    failed = counting.count(current, counting.FAILURES)
    if rollout.state == "RUNNING" and not rollout.held and not judged.holds:
        raise FleetError(
            f"rollout {name_of(rollout.number)} is RUNNING, and holds nothing back",
            remedy=f"edgepack rollout status {name_of(rollout.number)}",
        )
    seen = judged.accepted_by_resume
    said = [counted(failed, "failure"), *sorted(seen)]
    because = f"resumed by a person, {', '.join(said)} accepted"
    change(session, rollout, "resume", because, now)
    rollout.accepted_failures = failed
    rollout.accepted = tuple(sorted({*rollout.accepted, *seen}))
    rollout.held = {}


def approve(session: Session, rollout: RolloutRow, now: float) -> None:
    """Approve the next wave.

    Raises:
        FleetError: The rollout needs no approval, the wave is approved already, or no wave is left.
    """
    name = name_of(rollout.number)
    following = rollout.wave + 1
    problem = ""
    if not rollout.settings.approve_waves or rollout.state not in ("RUNNING", "PAUSED"):
        problem = f"rollout {name} waits for nobody's approval"
    elif following >= rollout.wave_count:
        problem = f"rollout {name} has begun its last wave"
    elif following <= rollout.approved:
        problem = f"wave {following + 1} of rollout {name} is approved already"
    if problem:
        raise FleetError(problem, remedy=f"edgepack rollout status {name}")
    rollout.approved = following
    because = f"wave {following + 1} of {rollout.wave_count} may begin"
    note_act(session, rollout, "rollout.approve", because, {"wave": following + 1}, now)


def abort(
    session: Session, rollout: RolloutRow, *, because: str, now: float
) -> tuple[Publication, ...]:
    """End a rollout for good.

    Undecided devices are ordered to stay with their previous release; committed devices keep the
    release.
    """
    change(session, rollout, "abort", because, now)
    assignments.withdraw_waiting(session, rollout.number, now)
    open_assignments = assignments.of_rollout(session, rollout.number, OPEN)
    return send_back(session, rollout, open_assignments, now)


def note_reports(session: Session, heard: Sequence[tuple[str, Reported]], now: float) -> Moved:
    """Update the assignments that reports refer to: at most a single assignment for each model of a
    device.

    Args:
        session: The transaction.
        heard: Devices with their reports, in receive order.
        now: Seconds since the epoch.
    """
    found = {
        (assignment.device, assignment.sequence): assignment
        for assignment in assignments.of_devices(session, {device for device, _ in heard}, OPEN)
    }
    if not found:
        return Moved()
    numbers = {assignment.rollout for assignment in found.values()}
    rows = session.scalars(select(RolloutRow).where(RolloutRow.number.in_(numbers)))
    rollouts = {rollout.number: rollout for rollout in rows}
    notes: dict[tuple[str, int | None], StateChange] = {}
    committed: dict[tuple[str, int | None], Committed] = {}
    for device, reported in heard:
        for said in reported.models.values():
            key = (device, said.sequence)
            if (assignment := found.get(key)) is None:
                continue
            state = notes[key].state if key in notes else assignment.state
            if note := _note(assignment, state, rollouts[assignment.rollout], said, now):
                notes[key] = note
                if note.state == "COMMITTED" and said.active is not None:
                    digest = rollouts[assignment.rollout].digest
                    committed[key] = Committed(device, digest, said.active.choice)
    assignments.record(session, list(notes.values()))
    measurements.note_committed(session, list(committed.values()))
    late = {note.assignment.rollout for note in notes.values() if note.state == "COMMITTED"}
    for number in late:
        if (rollout := rollouts[number]).state == "FINISHED":  # what was said of it changes
            outcome = counting.tell_outcome(judgement.counts_of(session, rollout))
            rollout.because, rollout.changed_at = outcome, now
    last = dict(heard)
    passed = frozenset(
        assignment.device
        for assignment in found.values()
        if _has_passed(last[assignment.device], assignment, rollouts[assignment.rollout])
    )
    return Moved(passed, any(note.decided_at is not None for note in notes.values()))


def _has_passed(reported: Reported, assignment: Assignment, rollout: RolloutRow) -> bool:
    said = reported.models.values()
    if assignment.sequence is None or all(one.acted_sequence < assignment.sequence for one in said):
        return False
    return not any(speaks_of(one, assignment.sequence, rollout.digest) for one in said)


def _note(
    assignment: Assignment, state: str, rollout: RolloutRow, said: ReportedModel, now: float
) -> StateChange | None:
    """Return the state change that a report causes; None without a change.

    A decision is final; only a silent device may still report.
    """
    if not speaks_of(said, assignment.sequence, rollout.digest):
        return None
    meaning = counting.MEANING.get(said.state)
    serves = said.active is not None and said.active.bundle.digest == rollout.digest
    if meaning is None and said.state == "IDLE" and serves:
        meaning = "COMMITTED"
    because = said.because[: records.MAX_TEXT]
    if meaning is None or state not in OPEN or (meaning == "WORKING" and state == "SILENT"):
        return None
    if (meaning, because) == (assignment.state, assignment.because):
        return None
    return StateChange(assignment, meaning, because, now if meaning in counting.DECIDED else None)


def change(
    session: Session,
    rollout: RolloutRow,
    event: rules.RolloutEvent,
    because: str,
    now: float,
    numbers: Numbers | None = None,
) -> None:
    """Change a rollout's state, and record actor, reason and numbers."""
    before = rollout.state
    state = judgement.state_of(rollout)
    after = rules.transition(state, event, name_of(rollout.number))
    decision.store_decision(session, rollout, event, now)
    rollout.state = after
    rollout.because, rollout.changed_at = because, now
    record_change(session, rollout, before, because, now)
    if event in _ACTIONS:  # a breach is noted with the gate that it is of
        counts = sum(assignments.counts(session, (rollout.number,))[rollout.number], Counter[str]())
        told = {state.lower(): count for state, count in counts.items()} | (numbers or {})
        note_act(session, rollout, _ACTIONS[event], because, told, now)


def note_act(
    session: Session,
    rollout: RolloutRow,
    action: Action,
    because: str,
    numbers: Numbers,
    now: float,
    actor: str = "",
) -> None:
    """Record an action on a rollout and the deciding numbers in the audit log."""
    entry = Entry(
        action=action,
        actor=actor,
        rollout=name_of(rollout.number),
        model=session.get_one(ReleaseRow, rollout.digest).name,
        digest=rollout.digest,
        because=because,
        numbers=numbers,
    )
    audit.note(session, now, entry)


def record_change(
    session: Session, rollout: RolloutRow, before: str, because: str, now: float
) -> None:
    """Log and store the result of a rollout, with the reason."""
    name = name_of(rollout.number)
    log.info("rollout=%s from=%s to=%s because=%s", name, before, rollout.state, because)
    records.add_rollout_event(
        session,
        rollout=name,
        bundle=rollout.digest,
        before=before,
        after=rollout.state,
        because=because,
        now=now,
    )
