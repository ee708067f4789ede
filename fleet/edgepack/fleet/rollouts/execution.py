"""Rollouts in the database: carrying out the rules, stopping, taking back, heeding reports.

Which devices a rollout has is decided in `membership.py`. Every function works inside the
caller's transaction and returns what is to be published once that is durable.
"""

import logging
from collections.abc import Sequence

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import records
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, RolloutRow
from edgepack.fleet.documents.rollouts import OnBreach
from edgepack.fleet.rollouts import rules
from edgepack.fleet.rollouts.offers import name_of, offer, send_back, speaks_of
from edgepack.text import counted
from edgepack.wire.messages import Reported, ReportedModel

log = logging.getLogger(__name__)


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


def step(session: Session, now: float) -> tuple[Publication, ...]:
    """Carries out what the rules decide for every rollout that is not over."""
    publications: list[Publication] = []
    query = select(RolloutRow).where(RolloutRow.state.in_(("RUNNING", "PAUSED")))
    for rollout in session.scalars(query.order_by(RolloutRow.number)).all():
        rows = _assignments(session, rollout)
        decisions = rules.decide(_for_rules(rollout), [_assignment(row) for row in rows], now)
        by_device = {row.device: row for row in rows}
        for decision in decisions:
            publications += _carry_out(session, rollout, by_device, decision, now)
    return tuple(publications)


def _carry_out(
    session: Session,
    rollout: RolloutRow,
    rows: dict[str, AssignmentRow],
    decision: rules.Decision,
    now: float,
) -> tuple[Publication, ...]:
    match decision:
        case rules.TimeOut(devices=names):
            for name in names:
                row = rows[name]
                row.state, row.decided_at = "SILENT", now
                row.because = f"said nothing decisive within {rollout.deadline_s:g} s"
            log.warning(
                "rollout=%s silent=%s because=deadline", name_of(rollout.number), ",".join(names)
            )
        case rules.Offer(wave=wave, devices=names):
            if wave != rollout.wave:
                rollout.wave, rollout.accepted_failures, rollout.changed_at = wave, 0, now
                because = (
                    f"wave {wave + 1} of {rollout.wave_count}: {counted(len(names), 'device')}"
                )
                record_change(session, rollout, rollout.state, because, now)
            return tuple(offer(session, rollout, rows[name], now) for name in names)
        case rules.Breach(action="abort", because=because):
            return abort(session, rollout, because=because, now=now)
        case rules.Breach(because=because):
            _change(session, rollout, "breach", because, now)
        case rules.Finish(because=because):
            _change(session, rollout, "finish", because, now)
    return ()


def pause(session: Session, rollout: RolloutRow, now: float) -> None:
    """Offers the release to nobody more; devices that have it under way go on."""
    _change(session, rollout, "pause", "paused by a person", now)


def resume(session: Session, rollout: RolloutRow, now: float) -> None:
    """Goes on; the failures of the current wave so far are accepted, any further one is not."""
    failed = sum(
        row.wave == rollout.wave and row.state in rules.FAILURES
        for row in _assignments(session, rollout)
    )
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
    publications = []
    for row in _assignments(session, rollout):
        if row.state == "WAITING":
            row.state, row.decided_at = "WITHDRAWN", now
        elif row.state in rules.UNDECIDED or row.state == "SILENT":
            publications.append(send_back(session, rollout, row, now))
    return tuple(publications)


def note_report(session: Session, device: DeviceRow, reported: Reported, now: float) -> None:
    """Moves the assignments that a report speaks of: one for each model at most."""
    for model in reported.models.values():
        if model.sequence:
            _note_model(session, device, model, now)


def _note_model(session: Session, device: DeviceRow, said: ReportedModel, now: float) -> None:
    row = session.scalar(
        select(AssignmentRow).where(
            AssignmentRow.device == device.id, AssignmentRow.sequence == said.sequence
        )
    )
    # What was withdrawn or decided stays so; only a silent device may still speak up.
    if row is None or (row.state not in rules.UNDECIDED and row.state != "SILENT"):
        return
    rollout = session.get_one(RolloutRow, row.rollout)
    if not speaks_of(said, row.sequence, rollout.digest):
        return
    meaning = rules.MEANING.get(said.state)
    serves = said.active is not None and said.active.bundle.digest == rollout.digest
    if meaning is None and said.state == "IDLE" and serves:
        meaning = "COMMITTED"
    if meaning is None or (meaning == "WORKING" and row.state == "SILENT"):
        return
    row.state = meaning
    row.because = said.because[: records.MAX_TEXT]
    if meaning in rules.DECIDED:
        row.decided_at = now
    if meaning == "COMMITTED" and rollout.state == "FINISHED":  # a late one: what was said changes
        parts = [_assignment(part) for part in _assignments(session, rollout)]
        rollout.because, rollout.changed_at = rules.tell_outcome(parts), now


def _change(
    session: Session, rollout: RolloutRow, event: rules.RolloutEvent, because: str, now: float
) -> None:
    before = rollout.state
    rollout.state = rules.transition(_state(rollout), event, name_of(rollout.number))
    rollout.because, rollout.changed_at = because, now
    record_change(session, rollout, before, because, now)


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


def _assignments(session: Session, rollout: RolloutRow) -> Sequence[AssignmentRow]:
    query = select(AssignmentRow).where(AssignmentRow.rollout == rollout.number)
    return session.scalars(query.order_by(AssignmentRow.wave, AssignmentRow.device)).all()


def _state(rollout: RolloutRow) -> rules.RolloutState:
    state: rules.RolloutState = msgspec.convert(rollout.state, rules.RolloutState)
    return state


def _for_rules(rollout: RolloutRow) -> rules.Rollout:
    return rules.Rollout(
        state=_state(rollout),
        wave=rollout.wave,
        wave_count=rollout.wave_count,
        deadline_s=rollout.deadline_s,
        threshold=rules.Threshold(
            max_failed_share=rollout.max_failed_share,
            min_sample=rollout.min_sample,
            on_breach=msgspec.convert(rollout.on_breach, OnBreach),
        ),
        accepted_failures=rollout.accepted_failures,
    )


def _assignment(row: AssignmentRow) -> rules.Assignment:
    return rules.Assignment(
        device=row.device,
        wave=row.wave,
        state=msgspec.convert(row.state, rules.AssignmentState),
        offered_at=row.offered_at,
    )
