"""Steps of rollouts: carry out the rules' decisions in the database.

Every function works inside the caller's transaction and returns messages to publish after the
commit.
"""

import logging
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.fleet.database import assignments, measurements
from edgepack.fleet.database.assignments import Limits, StateChange
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import ReleaseRow, RolloutRow
from edgepack.fleet.documents.gates import GateView
from edgepack.fleet.documents.rollouts import SetAside
from edgepack.fleet.rollouts import (
    canary,
    counting,
    execution,
    judgement,
    looks,
    rollback,
    rules,
)
from edgepack.fleet.rollouts.decision import store_hold
from edgepack.fleet.rollouts.execution import Numbers, note_act, record_change
from edgepack.fleet.rollouts.offers import name_of, offer, send_back
from edgepack.fleet.rollouts.rollback import IsReleased, WayBack, find_way_back
from edgepack.fleet.rollouts.windows import closed_zones
from edgepack.text import counted

log = logging.getLogger(__name__)

OFFERS_A_STEP = 500
"""A larger wave is offered in several transactions, between which messages are taken down."""
MAX_NAMED = 20
PREPARES_WITHIN_S = 60.0
"""A piece of a rollout that is PREPARING follows the one before within so long, by far."""


class Step(NamedTuple):
    """Result of a step: the messages to publish, and the number of RUNNING rollouts."""

    publications: tuple[Publication, ...]
    running: int


def step(session: Session, now: float, is_released: IsReleased) -> Step:
    """Carry out the rules' decisions for every unfinished rollout.

    Args:
        session: The transaction.
        now: Seconds since the epoch.
        is_released: Whether devices accept the release to go back to.
    """
    publications: list[Publication] = []
    _end_unprepared(session, now)
    query = select(RolloutRow).where(RolloutRow.state.in_(("RUNNING", "PAUSED")))
    rollouts = session.scalars(query.order_by(RolloutRow.number)).all()
    for rollout in rollouts:
        _time_out(session, rollout, now)
        judged = judgement.judge(session, rollout, now)
        decision = rules.decide(judged.rollout, judged.classes, judged.measured)
        if decision is None:
            rollout.waits_for = rollout.waits_reason = ""
        else:
            publications += _carry_out(session, rollout, decision, judged, now, is_released)
    running = sum(rollout.state == "RUNNING" for rollout in rollouts)
    return Step(tuple(publications), running)


def _end_unprepared(session: Session, now: float) -> None:
    """End rollouts whose preparing process has ended, by abort."""
    query = select(RolloutRow).where(
        RolloutRow.state == "PREPARING", RolloutRow.changed_at < now - PREPARES_WITHIN_S
    )
    for rollout in session.scalars(query).all():
        because = f"not prepared: nothing was added for {PREPARES_WITHIN_S:g} s"
        execution.abort(session, rollout, because=because, now=now)


def _time_out(session: Session, rollout: RolloutRow, now: float) -> None:
    """Note devices without a decision until the deadline; also in a paused rollout."""
    before = now - rollout.settings.deadline_s
    late = assignments.offered_before(session, rollout.number, counting.UNDECIDED, before)
    if late:
        because = f"said nothing decisive within {rollout.settings.deadline_s:g} s"
        assignments.record(
            session, [StateChange(assignment, "SILENT", because, now) for assignment in late]
        )
        names = ",".join(assignment.device for assignment in late[:MAX_NAMED]) + ",…" * (
            len(late) > MAX_NAMED
        )
        log.warning(
            "rollout=%s silent=%s count=%d because=deadline",
            *(name_of(rollout.number), names, len(late)),
        )
        numbers: Numbers = {"devices": len(late), "deadline_s": rollout.settings.deadline_s}
        note_act(session, rollout, "rollout.silent", f"{names}: {because}", numbers, now)


def _carry_out(
    session: Session,
    rollout: RolloutRow,
    decision: rules.Decision,
    judged: judgement.Judgement,
    now: float,
    is_released: IsReleased,
) -> tuple[Publication, ...]:
    match decision:
        case rules.Offer(wave=wave, devices=count):
            rollout.evidence_since = None
            if wave != rollout.wave:
                rollout.wave, rollout.accepted_failures, rollout.changed_at = wave, 0, now
                because = f"wave {wave + 1} of {rollout.wave_count}: {counted(count, 'device')}"
                record_change(session, rollout, rollout.state, because, now)
                numbers: Numbers = {"wave": wave + 1, "devices": count, **_said(judged.views)}
                note_act(session, rollout, "rollout.wave", because, numbers, now)
            closed = closed_zones(rollout, now)
            limits = Limits(tuple(judged.rollout.held), closed, rollout.settings.max_per_site)
            offered = assignments.waiting(session, rollout.number, wave, OFFERS_A_STEP, limits)
            left = count - len(offered) if len(offered) < OFFERS_A_STEP else 0
            rollout.waits_for = _tell_limits(rollout, left)
            rollout.waits_reason = "limits" if rollout.waits_for else ""
            return offer(session, rollout, offered, now)
        case rules.Await(reason=reason, because=because):
            if reason == "measurements" and rollout.evidence_since is None:
                rollout.evidence_since = now
            if reason == "evidence" and rollout.waits_reason != reason:
                numbers = {"wave": rollout.wave + 1, **_said(judged.views)}
                record_change(session, rollout, rollout.state, because, now)
                note_act(session, rollout, "rollout.hold", because, numbers, now)
            rollout.waits_for = _tell(rollout, reason, because)
            rollout.waits_reason = reason
        case rules.TryAnother(breach=breach):
            said = _set_aside(session, rollout, breach, now, is_released)
            return _breach(session, rollout, breach, now, is_released) if said is None else said
        case rules.Breach():
            return _breach(session, rollout, decision, now, is_released)
        case rules.Stop(because=because):
            execution.change(session, rollout, "stop", because, now, _said(judged.views))
        case rules.Finish(because=because):
            execution.change(session, rollout, "finish", because, now, _said(judged.views))
    return ()


def _tell_limits(rollout: RolloutRow, left: int) -> str:
    settings = rollout.settings
    limits = [f"the window {settings.window} where they are"] if settings.window else []
    if settings.max_per_site:
        limits.append(f"room at their site, {settings.max_per_site} at once")
    return f"{counted(left, 'device')}: {' and '.join(limits)}" if left and limits else ""


def _tell(rollout: RolloutRow, reason: str, because: str) -> str:
    following, name = rollout.wave + 2, name_of(rollout.number)
    match reason:
        case "approval":
            asked = f"approval of wave {following}: edgepack rollout approve {name}"
            return f"{asked} ({because})" if because else asked
        case "evidence":
            return (
                f"evidence before wave {following}: {because}. It continues when enough devices "
                f"have measured; to begin without evidence: edgepack rollout resume {name}. "
                "For devices on which no application runs the model: --gate-evidence optional"
            )
        case "start":
            start = datetime.fromtimestamp(rollout.settings.not_before or 0.0, UTC)
            return f"its start, {start:%Y-%m-%d %H:%M} UTC"
    wait_s = rollout.settings.evidence_s
    return f"what devices of wave {following - 1} measure, {wait_s:g} s at most"


def _said(views: tuple[GateView, ...]) -> Numbers:
    """Return the numbers of gates with evidence, by gate and class."""
    return {
        f"{view.name} {view.hardware_class}".rstrip(): round(number, 6)
        for view in views
        if (number := view.value if view.bound is None else view.bound) is not None
    }


def _breach(
    session: Session,
    rollout: RolloutRow,
    breach: rules.Breach,
    now: float,
    is_released: IsReleased,
) -> tuple[Publication, ...]:
    """Carry out the plan's action on a breach: for all devices, or for a hardware class.

    If no device can go back, since devices reject the previous release, the rollout pauses for a
    person.
    """
    numbers = {**breach.numbers, "on_breach": breach.action}
    way: WayBack | None = None
    if breach.action == "rollback":
        way = find_way_back(session, rollout, is_released, breach.hardware_class)
        breach = msgspec.structs.replace(
            breach,
            action="pause" if way.is_closed else "rollback",
            because="; ".join(filter(None, (breach.because, way.withdrawn))),
        )
    actor = f"gate {breach.gate}"
    note_act(session, rollout, "rollout.breach", breach.because, numbers, now, actor)
    if breach.hardware_class is not None:
        return _hold(session, rollout, breach, breach.hardware_class, way, now)
    rollout.stopped_by = actor
    if breach.action == "pause":
        execution.change(session, rollout, "breach", breach.because, now)
        return ()
    if way is None:
        return execution.abort(session, rollout, because=breach.because, now=now)
    return rollback.take_back(session, rollout, way, because=breach.because, now=now)


def _set_aside(
    session: Session,
    rollout: RolloutRow,
    breach: rules.Breach,
    now: float,
    is_released: IsReleased,
) -> tuple[Publication, ...] | None:
    """Set the only device of the current wave aside, and move another device into the wave.

    Returns:
        Messages to publish; None if the device cannot go back, or no other device can try.
    """
    assignment = canary.find_assignment(session, rollout)
    chosen = canary.find_another(session, rollout, assignment) if assignment else None
    if assignment is None or chosen is None:
        return None
    because = breach.because
    publications: tuple[Publication, ...] = ()
    if assignment.state == "COMMITTED":
        before = (
            session.get(ReleaseRow, assignment.before_digest) if assignment.before_digest else None
        )
        if before is None or before.deleted_at is not None or not is_released(before.bundle):
            return None
        publications = send_back(session, rollout, [assignment], now, f"set aside: {because}")
    else:
        assignments.record(
            session, [StateChange(assignment, "WITHDRAWN", f"set aside: {because}", now)]
        )
    measurements.take_out(session, assignment.device, rollout.digest)
    looks.forget(session, rollout)
    assignments.move(session, chosen, rollout.wave)
    entry = SetAside(
        wanted=assignment.device, chosen=chosen.device, because=because, wave=rollout.wave + 1
    )
    rollout.set_aside = (*rollout.set_aside, entry)
    rollout.evidence_since, rollout.changed_at = None, now
    told = f"{entry.wanted} is set aside, {entry.chosen} tries the release instead: {because}"
    record_change(session, rollout, rollout.state, told, now)
    numbers = {**breach.numbers, "wanted": entry.wanted, "chosen": entry.chosen}
    note_act(session, rollout, "rollout.set_aside", told, numbers, now, f"gate {breach.gate}")
    return publications


def _hold(
    session: Session,
    rollout: RolloutRow,
    breach: rules.Breach,
    name: str,
    way: WayBack | None,
    now: float,
) -> tuple[Publication, ...]:
    """Hold a hardware class back, while the other classes continue."""
    store_hold(session, rollout, name, now)
    rollout.held = rollout.held | {name: breach.because}
    rollout.changed_at = now
    record_change(session, rollout, rollout.state, f"{name} is held back: {breach.because}", now)
    if breach.action == "pause":
        return ()
    assignments.withdraw_waiting(session, rollout.number, now, name)
    offered = assignments.of_rollout(session, rollout.number, execution.OPEN, name)
    publications = send_back(session, rollout, offered, now)
    if way is not None:
        rollback.take_back_class(session, rollout, way, now)
    return publications
