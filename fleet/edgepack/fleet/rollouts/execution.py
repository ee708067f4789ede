"""Rollouts in the database: carrying out the rules, stopping, taking back, heeding reports.

Which devices a rollout has is decided in `membership.py`. Every function works inside the
caller's transaction and returns what is to be published once that is durable.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import assignments, audit, records
from edgepack.fleet.database.assignments import Note, Part
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import ReleaseRow, RolloutRow
from edgepack.fleet.documents.audit import Action, Number
from edgepack.fleet.documents.rollouts import OnBreach
from edgepack.fleet.rollouts import rules
from edgepack.fleet.rollouts.offers import name_of, offer, send_back, speaks_of
from edgepack.text import counted
from edgepack.wire.messages import Reported, ReportedModel

log = logging.getLogger(__name__)

Numbers = dict[str, Number]

OFFERS_A_STEP = 500
"""A larger wave is offered in several transactions, between which messages are taken down."""
MAX_NAMED = 20
_ACTIONS: dict[rules.RolloutEvent, Action] = {
    "pause": "rollout.pause",
    "resume": "rollout.resume",
    "finish": "rollout.finish",
    "abort": "rollout.abort",
}
OPEN = rules.UNDECIDED | {"SILENT"}
"""States of a part that a report may still change."""


def find(session: Session, rollout: str) -> RolloutRow:
    """The rollout of that id.

    Raises:
        FleetError: There is none.
    """
    number = rollout.removeprefix("r")
    row = session.get(RolloutRow, int(number)) if number.isdecimal() and len(number) < 10 else None
    if row is None:
        raise FleetError(f"there is no rollout {rollout}", remedy="edgepack rollout list")
    return row


class Step(NamedTuple):
    """What to publish, and how many rollouts are RUNNING."""

    publications: tuple[Publication, ...]
    running: int


def step(session: Session, now: float) -> Step:
    """Carries out what the rules decide for every rollout that is not over."""
    publications: list[Publication] = []
    query = select(RolloutRow).where(RolloutRow.state.in_(("RUNNING", "PAUSED")))
    rollouts = session.scalars(query.order_by(RolloutRow.number)).all()
    for rollout in rollouts:
        _time_out(session, rollout, now)
        decision = rules.decide(_for_rules(rollout), counts_of(session, rollout))
        if decision is not None:
            publications += _carry_out(session, rollout, decision, now)
    running = sum(rollout.state == "RUNNING" for rollout in rollouts)
    return Step(tuple(publications), running)


def _time_out(session: Session, rollout: RolloutRow, now: float) -> None:
    """Notes who said nothing decisive until the deadline; this holds for a paused rollout, too."""
    before = now - rollout.deadline_s
    late = assignments.offered_before(session, rollout.number, rules.UNDECIDED, before)
    if late:
        because = f"said nothing decisive within {rollout.deadline_s:g} s"
        assignments.note(session, [Note(part, "SILENT", because, now) for part in late])
        names = ",".join(part.device for part in late[:MAX_NAMED]) + ",…" * (len(late) > MAX_NAMED)
        log.warning(
            "rollout=%s silent=%s count=%d because=deadline",
            *(name_of(rollout.number), names, len(late)),
        )
        numbers: Numbers = {"devices": len(late), "deadline_s": rollout.deadline_s}
        note_act(session, rollout, "rollout.silent", f"{names}: {because}", numbers, now)


def _carry_out(
    session: Session, rollout: RolloutRow, decision: rules.Decision, now: float
) -> tuple[Publication, ...]:
    match decision:
        case rules.Offer(wave=wave, devices=count):
            if wave != rollout.wave:
                rollout.wave, rollout.accepted_failures, rollout.changed_at = wave, 0, now
                because = f"wave {wave + 1} of {rollout.wave_count}: {counted(count, 'device')}"
                numbers: Numbers = {"wave": wave + 1, "devices": count}
                record_change(session, rollout, rollout.state, because, now)
                note_act(session, rollout, "rollout.wave", because, numbers, now)
            parts = assignments.waiting(session, rollout.number, wave, OFFERS_A_STEP)
            return offer(session, rollout, parts, now)
        case rules.Breach(action=action, because=because):
            numbers = {**decision.numbers, "on_breach": action}
            note_act(session, rollout, "rollout.breach", because, numbers, now, "gate failures")
            if action == "abort":
                return abort(session, rollout, because=because, now=now)
            _change(session, rollout, "breach", because, now)
        case rules.Finish(because=because):
            _change(session, rollout, "finish", because, now)
    return ()


def pause(session: Session, rollout: RolloutRow, now: float) -> None:
    """Offers the release to nobody more; devices that have it under way go on."""
    _change(session, rollout, "pause", "paused by a person", now)


def resume(session: Session, rollout: RolloutRow, now: float) -> None:
    """Goes on; the failures of the current wave so far are accepted, any further one is not."""
    current = counts_of(session, rollout)[max(rollout.wave, 0) : rollout.wave + 1]
    failed = rules.count(current, rules.FAILURES)
    _change(
        session,
        rollout,
        "resume",
        f"resumed by a person, {counted(failed, 'failure')} accepted",
        now,
    )
    rollout.accepted_failures = failed


def abort(
    session: Session, rollout: RolloutRow, *, because: str, now: float
) -> tuple[Publication, ...]:
    """Ends a rollout for good.

    Devices that have not decided are told to stay with the release that they ran before; those
    that committed keep what they have.
    """
    _change(session, rollout, "abort", because, now)
    assignments.withdraw_waiting(session, rollout.number, now)
    open_parts = assignments.of_rollout(session, rollout.number, OPEN)
    return send_back(session, rollout, open_parts, now)


def note_reports(
    session: Session, heard: Sequence[tuple[str, Reported]], now: float
) -> frozenset[str]:
    """Moves the parts that reports speak of: one for each model of a device at most.

    Args:
        session: The transaction.
        heard: Devices with what they said, in the order in which it came.
        now: Seconds since the epoch.

    Returns:
        Devices that have passed the number of what they were told, and do not speak of it.
    """
    parts = {
        (part.device, part.sequence): part
        for part in assignments.of_devices(session, {device for device, _ in heard}, OPEN)
    }
    if not parts:
        return frozenset()
    numbers = {part.rollout for part in parts.values()}
    found = session.scalars(select(RolloutRow).where(RolloutRow.number.in_(numbers)))
    rollouts = {rollout.number: rollout for rollout in found}
    notes: dict[tuple[str, int | None], Note] = {}
    for device, reported in heard:
        for said in reported.models.values():
            key = (device, said.sequence)
            if (part := parts.get(key)) is None:
                continue
            state = notes[key].state if key in notes else part.state
            if note := _note(part, state, rollouts[part.rollout], said, now):
                notes[key] = note
    assignments.note(session, list(notes.values()))
    late = {note.part.rollout for note in notes.values() if note.state == "COMMITTED"}
    for number in late:
        if (rollout := rollouts[number]).state == "FINISHED":  # what was said of it changes
            outcome = rules.tell_outcome(counts_of(session, rollout))
            rollout.because, rollout.changed_at = outcome, now
    last = dict(heard)
    return frozenset(
        part.device
        for part in parts.values()
        if _has_passed(last[part.device], part, rollouts[part.rollout])
    )


def _has_passed(reported: Reported, part: Part, rollout: RolloutRow) -> bool:
    said = reported.models.values()
    if part.sequence is None or all(one.acted_sequence < part.sequence for one in said):
        return False
    return not any(speaks_of(one, part.sequence, rollout.digest) for one in said)


def _note(
    part: Part, state: str, rollout: RolloutRow, said: ReportedModel, now: float
) -> Note | None:
    """What a report makes of a part; None when it says nothing new of it.

    What was decided stays so; only a silent device may still speak up.
    """
    if not speaks_of(said, part.sequence, rollout.digest):
        return None
    meaning = rules.MEANING.get(said.state)
    serves = said.active is not None and said.active.bundle.digest == rollout.digest
    if meaning is None and said.state == "IDLE" and serves:
        meaning = "COMMITTED"
    because = said.because[: records.MAX_TEXT]
    if meaning is None or state not in OPEN or (meaning == "WORKING" and state == "SILENT"):
        return None
    if (meaning, because) == (part.state, part.because):
        return None
    return Note(part, meaning, because, now if meaning in rules.DECIDED else None)


def _change(
    session: Session, rollout: RolloutRow, event: rules.RolloutEvent, because: str, now: float
) -> None:
    before = rollout.state
    rollout.state = rules.transition(_state(rollout), event, name_of(rollout.number))
    rollout.because, rollout.changed_at = because, now
    record_change(session, rollout, before, because, now)
    if event != "breach":  # that is noted with its own numbers
        counts = sum(assignments.counts(session, (rollout.number,))[rollout.number], Counter[str]())
        numbers: Numbers = {state.lower(): count for state, count in counts.items()}
        note_act(session, rollout, _ACTIONS[event], because, numbers, now)


def note_act(
    session: Session,
    rollout: RolloutRow,
    action: Action,
    because: str,
    numbers: Numbers,
    now: float,
    actor: str = "",
) -> None:
    """Writes into the audit log what was done to a rollout, and the numbers that decided."""
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
    """Logs and keeps what a rollout has come to, and why."""
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


def counts_of(session: Session, rollout: RolloutRow) -> tuple[rules.Wave, ...]:
    """The parts of a rollout by state, wave by wave."""
    waves = assignments.counts(session, (rollout.number,))[rollout.number]
    return msgspec.convert(waves, tuple[rules.Wave, ...])


def _state(rollout: RolloutRow) -> rules.RolloutState:
    state: rules.RolloutState = msgspec.convert(rollout.state, rules.RolloutState)
    return state


def _for_rules(rollout: RolloutRow) -> rules.Rollout:
    return rules.Rollout(
        state=_state(rollout),
        wave=rollout.wave,
        wave_count=rollout.wave_count,
        threshold=rules.Threshold(
            max_failed_share=rollout.max_failed_share,
            min_sample=rollout.min_sample,
            on_breach=msgspec.convert(rollout.on_breach, OnBreach),
        ),
        accepted_failures=rollout.accepted_failures,
    )
