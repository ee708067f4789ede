"""Start of a rollout: a large rollout is stored in pieces, so that other writers get their turn.

Devices are read first, which blocks no writer; the read is repeated if a device came or left since.
Until every device has its assignment the rollout is PREPARING: no device gets an offer, and no
other rollout of the model begins. If the preparing process ends, the leader aborts the rollout
after a time without progress (`steps.py`).
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import assignments, audit, unsent
from edgepack.fleet.database.assignments import StateChange
from edgepack.fleet.database.audit import CONTROLLER
from edgepack.fleet.database.candidates import Asked, Candidate, select_candidates
from edgepack.fleet.database.schema import ReleaseRow, RolloutRow
from edgepack.fleet.database.store import Store
from edgepack.fleet.documents.rollouts import RolloutRequest
from edgepack.fleet.rollouts import counting, execution, judgement, membership
from edgepack.fleet.rollouts.offers import name_of
from edgepack.fleet.rollouts.preview import judge, open_rollouts, refuse
from edgepack.fleet.rollouts.settings import check_settings
from edgepack.fleet.rollouts.waves import keys_of, parse_waves
from edgepack.text import counted
from edgepack.wire.orders import BundleRef


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


PAUSE_S = 0.02
"""Between two pieces: whoever waits to write comes first."""

Check = Callable[[BundleRef], None]
"""Raises when a release may not be rolled out."""


def start(
    store: Store,
    request: RolloutRequest,
    *,
    by: str = CONTROLLER,
    check: Check = lambda _: None,
    now: Callable[[], float] | None = None,
    at_once: int = assignments.ADDED_AT_ONCE,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Make a rollout and put its devices into waves; the first wave begins with the next step.

    Args:
        store: The database.
        request: The request.
        by: The actor.
        check: Whether the release may be rolled out.
        now: Clock, seconds since the epoch; None is the database's.
        at_once: Devices that a transaction adds.
        pause: Waits so many seconds between two.

    Returns:
        The rollout's id.

    Raises:
        FleetError: The release is unknown, a number is invalid, no device is selected, a device
            cannot take the release (see `preview.judge`), another rollout of the model is being
            prepared, or this rollout was aborted in the meantime.
    """
    check_settings(request)
    keys = keys_of(parse_waves(request.waves)) | membership.seat_keys(request)
    now = now or store.now
    # What a device reports changes whom an expression means, and nobody notes that.
    may_change = request.selector.kind == "where"
    rows: Sequence[Candidate] = ()
    with store.reading() as session:
        read_at = audit.last(session)
        asked = Asked(_release(session, request).name, keys)
        if not may_change:
            rows = select_candidates(session, request.selector, asked)
    with store.transaction(by) as session:
        release = _release(session, request)
        check(release.bundle)
        if may_change or audit.has_changed_devices(session, read_at):
            rows = select_candidates(session, request.selector, asked)
        _refuse(session, release, request, rows)
        rollout, left = membership.begin(
            session,
            release,
            rows,
            selector=request.selector,
            settings=request,
            at_once=at_once,
            now=now(),
        )
        number, is_ready = rollout.number, rollout.state == "RUNNING"
        if is_ready:
            _finish(session, rollout, release, request, rows, now())
    while not is_ready:
        pause(PAUSE_S)
        some = list(islice(left, at_once))
        with store.transaction(by) as session:
            rollout = session.get_one(RolloutRow, number)
            if rollout.state != "PREPARING":
                raise FleetError(
                    f"rollout {name_of(number)} is {rollout.state}: {rollout.because}",
                    remedy=f"edgepack rollout status {name_of(number)}",
                )
            assignments.add(session, number, some)
            rollout.changed_at = now()
            if is_ready := len(some) < at_once:
                because = f"{counted(len(rows), 'device')} have their wave"
                execution.change(session, rollout, "begin", because, now())
                _finish(session, rollout, release, request, rows, now())
    return name_of(number)


def _release(session: Session, request: RolloutRequest) -> ReleaseRow:
    release = session.get(ReleaseRow, request.digest)
    if release is None or release.deleted_at is not None:
        raise FleetError(
            f"no release has digest {request.digest}",
            remedy="edgepack rollout start BUNDLE uploads it",
        )
    return release


def _refuse(
    session: Session, release: ReleaseRow, request: RolloutRequest, rows: Sequence[Candidate]
) -> None:
    """Reject a rollout that cannot start on all of these devices."""
    membership.check_keys(session, parse_waves(request.waves))
    query = (
        select(RolloutRow.number)
        .join(ReleaseRow, RolloutRow.digest == ReleaseRow.digest)
        .where(RolloutRow.state == "PREPARING", ReleaseRow.name == release.name)
    )
    if (number := session.scalar(query)) is not None:
        raise FleetError(
            f"rollout {name_of(number)} of {release.name} is being prepared",
            remedy=f"edgepack rollout status {name_of(number)}, then again",
        )
    verdicts, _ = judge(
        session, release.bundle, rows, request.selector, supersede=request.supersede
    )
    refuse(release.bundle, verdicts)


def _finish(
    session: Session,
    rollout: RolloutRow,
    release: ReleaseRow,
    request: RolloutRequest,
    rows: Sequence[Candidate],
    now: float,
) -> None:
    """Finish the start: all devices have assignments, older rollouts lose these devices, and the
    leader is notified.
    """
    if request.supersede:
        states = counting.LIVE  # decided devices, too: a rollout that keeps no device ends
        older = open_rollouts(session, release.name, states=states, but=rollout.number)
        take_over(session, rollout, {row.id: older[row.id] for row in rows if row.id in older}, now)
    unsent.add(session, ())
