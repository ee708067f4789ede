"""Rollouts in the database: starting them, carrying out the rules, stopping and taking back.

Every function works inside the caller's transaction and returns what is to be published once
that is durable.
"""

import logging
from collections import Counter
from collections.abc import Sequence

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import devices, records
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.documents import RolloutRequest, Selector
from edgepack.fleet.rollout import rules
from edgepack.fleet.rollout.offers import name_of, offer, send_back
from edgepack.fleet.rollout.waves import divide_devices, parse_waves
from edgepack.wire.messages import Reported

log = logging.getLogger(__name__)


def start(session: Session, request: RolloutRequest, now: float) -> RolloutRow:
    """Makes a rollout and puts its devices into waves; the first one begins with the next step.

    Raises:
        FleetError: The release is unknown, a number makes no sense, no device is selected, or
            one of them is in another rollout that is not over.
    """
    steps = parse_waves(request.waves)
    _check_numbers(request)
    release = session.get(ReleaseRow, request.digest)
    if release is None:
        raise FleetError(
            f"no release has digest {request.digest}",
            remedy="edgepack rollout start BUNDLE uploads it",
        )
    rows = _selected(session, request.selector)
    _check_free(session, rows)
    rollout = RolloutRow(
        digest=release.digest,
        selector=msgspec.json.encode(request.selector).decode(),
        waves=request.waves,
        wave_count=0,
        soak_s=request.soak_s,
        deadline_s=request.deadline_s,
        max_failed_share=request.max_failed_share,
        min_sample=request.min_sample,
        on_breach=request.on_breach,
        state="RUNNING",
        because=f"started for {request.selector}",
        started_at=now,
        changed_at=now,
    )
    session.add(rollout)
    session.flush()
    online = {row.id: row.online for row in rows}
    waves = divide_devices(online, steps, name_of(rollout.number))
    rollout.wave_count = max(waves.values()) + 1
    for device, wave in waves.items():
        session.add(
            AssignmentRow(rollout=rollout.number, device=device, wave=wave, state="WAITING")
        )
    session.flush()
    _record(session, rollout, "", rollout.because, now)
    return rollout


def _check_numbers(request: RolloutRequest) -> None:
    problem = remedy = ""
    if not 0 <= request.max_failed_share <= 1:
        problem, remedy = "the greatest share of failures is 0% to 100%", "--max-failures 10%"
    elif request.min_sample < 1:
        problem, remedy = "a sample has at least 1 device", "--min-sample 5"
    elif request.soak_s < 0:
        problem, remedy = "a soak takes 0 seconds or more", "--soak 60"
    elif request.deadline_s <= request.soak_s:
        problem = f"no device can soak {request.soak_s:g} s within {request.deadline_s:g} s"
        remedy = f"--deadline {request.soak_s * 2 + 600:g}"
    if problem:
        raise FleetError(problem, remedy=remedy)


def _selected(session: Session, selector: Selector) -> Sequence[DeviceRow]:
    if selector.kind == "devices":
        return devices.find_devices(session, tuple(dict.fromkeys(selector.devices)))
    query = select(DeviceRow)
    if selector.kind == "group":
        query = query.where(DeviceRow.group == selector.group)
    rows = session.scalars(query).all()
    if not rows:
        groups = session.scalars(select(DeviceRow.group).distinct().order_by(DeviceRow.group))
        raise FleetError(
            f"no device is enrolled in {selector}"
            if selector.kind == "group"
            else "no device is enrolled",
            found_in=f"groups: {', '.join(groups) or 'none'}",
            remedy="edgepack fleet enroll cam-7 --group cameras -o cam-7/",
        )
    return rows


def _taken(session: Session) -> dict[str, tuple[int, str]]:
    """Devices that are in a rollout that is not over: its number and state."""
    query = (
        select(AssignmentRow.device, RolloutRow.number, RolloutRow.state)
        .join(RolloutRow, AssignmentRow.rollout == RolloutRow.number)
        .where(RolloutRow.state.in_(("RUNNING", "PAUSED")))
    )
    return {device: (number, state) for device, number, state in session.execute(query)}


def _check_free(session: Session, rows: Sequence[DeviceRow]) -> None:
    taken = _taken(session)
    for row in rows:
        if row.id in taken:
            number, state = taken[row.id]
            other = name_of(number)
            raise FleetError(
                f"device {row.id} is in rollout {other}, which is {state}",
                remedy=f"edgepack rollout watch {other}, or edgepack rollout abort {other}",
            )


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
                because = f"wave {wave + 1} of {rollout.wave_count}: {len(names)} devices"
                _record(session, rollout, rollout.state, because, now)
            return tuple(offer(session, rollout, rows[name], now) for name in names)
        case rules.Breach(action="abort", because=because):
            return abort(session, rollout, because=because, recall="undecided", now=now)
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
    _change(session, rollout, "resume", f"resumed by a person, {failed} failures accepted", now)
    rollout.accepted_failures = failed


def abort(
    session: Session, rollout: RolloutRow, *, because: str, recall: str, now: float
) -> tuple[Publication, ...]:
    """Ends a rollout for good.

    Devices that have not decided are told to stay with the release that they ran before.

    Args:
        session: The transaction.
        rollout: Which.
        because: Why.
        recall: `undecided`, or `all`: devices that committed go back to the release before, too.
        now: Seconds since the epoch.
    """
    _change(session, rollout, "abort", because, now)
    publications = []
    for row in _assignments(session, rollout):
        if row.state == "WAITING":
            row.state, row.decided_at = "WITHDRAWN", now
        elif row.state in rules.UNDECIDED or row.state == "SILENT":
            publications.append(send_back(session, rollout, row, "WITHDRAWN", now))
        elif row.state == "COMMITTED" and recall == "all":
            publications.append(send_back(session, rollout, row, "RECALLED", now))
    return tuple(publications)


def join(session: Session, device: DeviceRow, now: float) -> tuple[Publication, ...]:
    """Gives a device that has just joined what the newest rollout gave its group."""
    if device.id in _taken(session):
        return ()
    query = select(RolloutRow).where(RolloutRow.state != "ABORTED")
    for rollout in session.scalars(query.order_by(RolloutRow.number.desc())):
        if not _is_for(msgspec.json.decode(rollout.selector, type=Selector), device):
            continue
        if session.get(AssignmentRow, (rollout.number, device.id)) is not None:
            return ()
        row = AssignmentRow(
            rollout=rollout.number, device=device.id, wave=rollout.wave_count - 1, state="WAITING"
        )
        session.add(row)
        session.flush()
        if rollout.state == "FINISHED":
            return (offer(session, rollout, row, now),)
        return ()
    return ()


def _is_for(selector: Selector, device: DeviceRow) -> bool:
    if selector.kind == "group":
        return selector.group == device.group
    return selector.kind == "all"


def note_report(session: Session, device: DeviceRow, reported: Reported, now: float) -> None:
    """Moves the assignment that a report speaks of."""
    row = session.scalar(
        select(AssignmentRow).where(
            AssignmentRow.device == device.id, AssignmentRow.sequence == reported.sequence
        )
    )
    # What was withdrawn or decided stays so; only a silent device may still speak up.
    if row is None or (row.state not in rules.UNDECIDED and row.state != "SILENT"):
        return
    meaning = rules.MEANING.get(reported.state)
    if meaning is None and reported.state == "IDLE" and reported.active is not None:
        rollout = session.get_one(RolloutRow, row.rollout)
        if reported.active.bundle.digest == rollout.digest:
            meaning = "COMMITTED"
    if meaning is None or (meaning == "WORKING" and row.state == "SILENT"):
        return
    row.state = meaning
    row.because = reported.because[: records.MAX_TEXT]
    if meaning in rules.DECIDED:
        row.decided_at = now


def _change(
    session: Session, rollout: RolloutRow, event: rules.RolloutEvent, because: str, now: float
) -> None:
    before = rollout.state
    rollout.state = rules.transition(_state(rollout), event, name_of(rollout.number))
    rollout.because, rollout.changed_at = because, now
    _record(session, rollout, before, because, now)


def _record(session: Session, rollout: RolloutRow, before: str, because: str, now: float) -> None:
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
            on_breach=msgspec.convert(rollout.on_breach, rules.OnBreach),
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


def count_states(rows: Sequence[AssignmentRow]) -> dict[str, int]:
    """Devices by the state of their assignment."""
    return dict(Counter(row.state for row in rows))
