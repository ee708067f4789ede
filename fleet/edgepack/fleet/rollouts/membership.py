"""Which devices a rollout has: those selected when it is started, and those that join later.

Every function works inside the caller's transaction and returns what is to be published once
that is durable.
"""

from collections.abc import Sequence

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import devices
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.documents.rollouts import RolloutRequest, Selector
from edgepack.fleet.rollouts.execution import record_change
from edgepack.fleet.rollouts.offers import name_of, offer
from edgepack.fleet.rollouts.waves import divide_devices, parse_waves

MAX_SAMPLE = 1_000_000


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
    record_change(session, rollout, "", rollout.because, now)
    return rollout


def _check_numbers(request: RolloutRequest) -> None:
    problem = remedy = ""
    if not 0 <= request.max_failed_share <= 1:
        problem, remedy = "the greatest share of failures is 0% to 100%", "--max-failures 10%"
    elif not 1 <= request.min_sample <= MAX_SAMPLE:
        problem = f"a sample has 1 to {MAX_SAMPLE:,} devices"
        remedy = "--min-sample 5"
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
                remedy=f"edgepack rollout status {other}; start this one when that is over",
            )


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
