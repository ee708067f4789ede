"""Assignments of devices to rollouts: read, add, change, and count by wave.

A single transaction changes an assignment and the counters of its wave (`WaveRow`). The counters
therefore always equal a recount, and a rollout's status needs a row per wave.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from sqlalchemy import (
    ColumnElement,
    Insert,
    String,
    Update,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    update,
)
from sqlalchemy.orm import Session

from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, WaveRow

STATES = (
    "WAITING",
    "OFFERED",
    "WORKING",
    "COMMITTED",
    "FAILED",
    "SILENT",
    "WITHDRAWN",
    "RECALLED",
)
"""States of an assignment; each state has a column in `WaveRow`."""
ADDED_AT_ONCE = 10_000


class Assignment(NamedTuple):
    """Assignment of a device to a rollout, as read from the database; see `AssignmentRow`."""

    rollout: int
    device: str
    wave: int
    state: str
    sequence: int | None
    because: str
    before_digest: str
    hardware_class: str = ""
    site: str = ""


class WaveSlot(NamedTuple):
    """Place of an assignment in a rollout: index of the wave, keys of counters and limits."""

    wave: int
    hardware_class: str
    site: str = ""
    zone: str = ""


class Limits(NamedTuple):
    """Limits on the devices that may be offered a release now.

    Attributes:
        held: Hardware classes that are held back.
        closed: Time zones in which no maintenance window is open.
        max_per_site: Devices of a site that may update at the same time; 0 for any number.
    """

    held: Sequence[str] = ()
    closed: Sequence[str] = ()
    max_per_site: int = 0


class StateChange(NamedTuple):
    """New state of an assignment; `decided_at` is None while the assignment is undecided."""

    assignment: Assignment
    state: str
    because: str
    decided_at: float | None


class SentOffer(NamedTuple):
    """Assignment of a device that was just offered the release."""

    assignment: Assignment
    sequence: int
    offered_at: float
    before_digest: str


_PART = select(
    AssignmentRow.rollout,
    AssignmentRow.device,
    AssignmentRow.wave,
    AssignmentRow.state,
    AssignmentRow.sequence,
    AssignmentRow.because,
    AssignmentRow.before_digest,
    AssignmentRow.hardware_class,
    AssignmentRow.site,
)
_IS_WAITING: ColumnElement[str] = literal_column("'WAITING'")
"""Spelt out, since only so an index of those that wait alone is used."""
# Statements are made once: to build one takes SQLAlchemy longer than to run it.
_OF_DEVICES = _PART.where(
    AssignmentRow.device.in_(bindparam("devices", expanding=True)),
    AssignmentRow.state.in_(bindparam("states", expanding=True)),
)
_WAITING = (
    _PART.where(
        AssignmentRow.rollout == bindparam("rollout"),
        AssignmentRow.state == _IS_WAITING,
        AssignmentRow.wave <= bindparam("wave"),
        AssignmentRow.hardware_class.not_in(bindparam("held", expanding=True)),
        AssignmentRow.zone.not_in(bindparam("closed", expanding=True)),
    )
    .order_by(AssignmentRow.wave, AssignmentRow.device)
    .limit(bindparam("limit"))
)
_BUSY = (
    select(AssignmentRow.site, func.count())
    .where(
        AssignmentRow.rollout == bindparam("rollout"),
        AssignmentRow.site != literal_column("''"),
        AssignmentRow.state.in_(("OFFERED", "WORKING")),
    )
    .group_by(AssignmentRow.site)
)
_FULL = _BUSY.having(func.count() >= bindparam("max_per_site")).with_only_columns(
    AssignmentRow.site
)
_WAITING_WHERE_ROOM = _WAITING.where(AssignmentRow.site.not_in(_FULL))
_OFFERED_BEFORE = _PART.where(
    AssignmentRow.rollout == bindparam("rollout"),
    AssignmentRow.state == bindparam("state"),
    AssignmentRow.offered_at < bindparam("before"),
).order_by(AssignmentRow.device)
_ONE = update(AssignmentRow).where(
    AssignmentRow.rollout == bindparam("b_rollout"), AssignmentRow.device == bindparam("b_device")
)
_ADDED = ("rollout", "device", *WaveSlot._fields)
_ADD = insert(AssignmentRow).values(
    rollout=bindparam("rollout"),
    device=bindparam("device", type_=String),
    **{name: literal_column("''") for name in ("because", "before_digest")},
    state=_IS_WAITING,
    **{name: bindparam(name, type_=String) for name in ("hardware_class", "site", "zone")},
    wave=bindparam("wave"),
)
_WITHOUT = (
    select(DeviceRow.id)
    .where(
        DeviceRow.id.in_(bindparam("names", expanding=True)),
        ~exists().where(
            AssignmentRow.rollout == bindparam("rollout"), AssignmentRow.device == DeviceRow.id
        ),
    )
    .order_by(DeviceRow.id)
)
_OFFER = _ONE.values(
    state="OFFERED",
    decided_at=None,
    sequence=bindparam("sequence"),
    offered_at=bindparam("offered_at"),
    before_digest=bindparam("before_digest"),
)
_NOTE = _ONE.values(
    state=bindparam("state"), because=bindparam("because"), decided_at=bindparam("decided_at")
)
_MOVE = _ONE.values(wave=bindparam("wave"))
_RENUMBER = _ONE.values(sequence=bindparam("sequence"))
_COUNTED = {state: getattr(WaveRow, state.lower()) for state in STATES}
_COUNT = (
    update(WaveRow)
    .where(
        WaveRow.rollout == bindparam("b_rollout"),
        WaveRow.wave == bindparam("b_wave"),
        WaveRow.hardware_class == bindparam("b_class"),
    )
    .values({column: column + bindparam(state) for state, column in _COUNTED.items()})
)
_COUNTS = select(WaveRow.rollout, WaveRow.wave, WaveRow.hardware_class, *_COUNTED.values()).where(
    WaveRow.rollout.in_(bindparam("rollouts", expanding=True))
)


def of_rollout(
    session: Session,
    rollout: int,
    states: Iterable[str],
    hardware_class: str | None = None,
    wave: int | None = None,
) -> list[Assignment]:
    """Return a rollout's assignments in these states: all, or of a hardware class, or of a wave."""
    query = _PART.where(AssignmentRow.rollout == rollout, AssignmentRow.state.in_(tuple(states)))
    if hardware_class is not None:
        query = query.where(AssignmentRow.hardware_class == hardware_class)
    if wave is not None:
        query = query.where(AssignmentRow.wave == wave)
    return [Assignment(*row) for row in session.execute(query)]


def of_devices(session: Session, devices: Iterable[str], states: Iterable[str]) -> list[Assignment]:
    """Return the assignments of devices in any of these states, in any rollout."""
    asked = {"devices": list(devices), "states": list(states)}
    return [Assignment(*row) for row in session.execute(_OF_DEVICES, asked)]


def of_release(session: Session, rollouts: Sequence[int], state: str) -> list[Assignment]:
    """Return the assignments of several rollouts in a state."""
    query = _PART.where(AssignmentRow.rollout.in_(rollouts), AssignmentRow.state == state)
    return [Assignment(*row) for row in session.execute(query)]


def waiting(
    session: Session, rollout: int, wave: int, limit: int, limits: Limits
) -> list[Assignment]:
    """Return waiting assignments, up to this wave, of devices that may be offered the release now.

    Returns:
        Assignments of the earliest wave first, `limit` at most.
    """
    asked: dict[str, object] = {"rollout": rollout, "wave": wave, "limit": limit}
    asked |= {"held": list(limits.held), "closed": list(limits.closed)}
    if not limits.max_per_site:
        return [Assignment(*row) for row in session.execute(_WAITING, asked)]
    at_once = {"rollout": rollout, "max_per_site": limits.max_per_site}
    busy: Counter[str] = Counter()
    for site, number in session.execute(_BUSY, {"rollout": rollout}):
        busy[site] = number
    assignments = []
    for row in session.execute(_WAITING_WHERE_ROOM, asked | at_once):
        assignment = Assignment(*row)
        if not assignment.site or busy[assignment.site] < limits.max_per_site:
            busy[assignment.site] += 1
            assignments.append(assignment)
    return assignments


def next_to_try(
    session: Session, rollout: int, wave: int, hardware_class: str
) -> Assignment | None:
    """Return the first waiting assignment of a later wave and a class, of a device online."""
    query = (
        _PART.join(DeviceRow, DeviceRow.id == AssignmentRow.device)
        .where(
            AssignmentRow.rollout == rollout,
            AssignmentRow.state == _IS_WAITING,
            AssignmentRow.wave > wave,
            AssignmentRow.hardware_class == hardware_class,
            DeviceRow.online,
        )
        .order_by(AssignmentRow.wave, AssignmentRow.device)
        .limit(1)
    )
    row = session.execute(query).first()
    return Assignment(*row) if row else None


def move(session: Session, assignment: Assignment, wave: int) -> None:
    """Move an assignment to another wave, which has some of its hardware class already."""
    change = {"b_rollout": assignment.rollout, "b_device": assignment.device, "wave": wave}
    _execute(session, _MOVE, [change])
    place = (assignment.hardware_class, assignment.state)
    _count(
        session,
        {(assignment.rollout, assignment.wave, *place): -1, (assignment.rollout, wave, *place): 1},
    )


def offered_before(
    session: Session, rollout: int, states: Iterable[str], before: float
) -> list[Assignment]:
    """Return assignments in any of these states with an older offer; an index serves the query."""
    return [
        Assignment(*row)
        for state in states
        for row in session.execute(
            _OFFERED_BEFORE, {"rollout": rollout, "state": state, "before": before}
        )
    ]


def add(session: Session, rollout: int, slots: Iterable[tuple[str, WaveSlot]]) -> None:
    """Add a waiting assignment for each device. Skip removed devices and existing assignments."""
    counted: Counter[tuple[int, str]] = Counter()
    left = iter(slots)
    while batch := dict(islice(left, ADDED_AT_ONCE)):
        asked = {"rollout": rollout, "names": list(batch)}
        page = [(name, batch[name]) for name in session.scalars(_WITHOUT, asked)]
        counted.update((slot.wave, slot.hardware_class) for _, slot in page)
        rows = [dict(zip(_ADDED, (rollout, device, *slot), strict=True)) for device, slot in page]
        _execute(session, _ADD, rows)
    query = select(WaveRow.wave, WaveRow.hardware_class).where(WaveRow.rollout == rollout)
    known = {(wave, name) for wave, name in session.execute(query)}
    if missing := counted.keys() - known:
        rows = [
            {"rollout": rollout, "wave": wave, "hardware_class": name}
            for wave, name in sorted(missing)
        ]
        session.execute(insert(WaveRow), rows)
    _count(session, {(rollout, *place, "WAITING"): n for place, n in counted.items()})


def offer(session: Session, offers: Sequence[SentOffer]) -> None:
    """Record the offers that were sent to devices."""
    changes = [
        {
            "b_rollout": sent.assignment.rollout,
            "b_device": sent.assignment.device,
            "sequence": sent.sequence,
            "offered_at": sent.offered_at,
            "before_digest": sent.before_digest,
        }
        for sent in offers
    ]
    _execute(session, _OFFER, changes)
    _count_moves(session, ((sent.assignment, "OFFERED") for sent in offers))


def record(session: Session, state_changes: Sequence[StateChange]) -> None:
    """Record new states of assignments."""
    changes = [
        {
            "b_rollout": change.assignment.rollout,
            "b_device": change.assignment.device,
            "state": change.state,
            "because": change.because,
            "decided_at": change.decided_at,
        }
        for change in state_changes
    ]
    _execute(session, _NOTE, changes)
    _count_moves(session, ((change.assignment, change.state) for change in state_changes))


def withdraw_waiting(
    session: Session, rollout: int, now: float, hardware_class: str | None = None
) -> None:
    """Withdraw all waiting assignments, of all hardware classes or of a single class."""
    assignments = update(AssignmentRow).where(
        AssignmentRow.rollout == rollout, AssignmentRow.state == "WAITING"
    )
    waves = update(WaveRow).where(WaveRow.rollout == rollout)
    if hardware_class is not None:
        assignments = assignments.where(AssignmentRow.hardware_class == hardware_class)
        waves = waves.where(WaveRow.hardware_class == hardware_class)
    moved = waves.values(withdrawn=WaveRow.withdrawn + WaveRow.waiting, waiting=0)
    for change in (assignments.values(state="WITHDRAWN", decided_at=now), moved):
        session.execute(change.execution_options(synchronize_session=False))


def renumber(session: Session, assignment: Assignment, sequence: int) -> None:
    """Change the sequence number of an assignment."""
    change = {"b_rollout": assignment.rollout, "b_device": assignment.device, "sequence": sequence}
    _execute(session, _RENUMBER, [change])


def remove(session: Session, devices: Sequence[str]) -> None:
    """Delete all assignments of these devices."""
    place = (
        AssignmentRow.rollout,
        AssignmentRow.wave,
        AssignmentRow.hardware_class,
        AssignmentRow.state,
    )
    counted = select(*place, func.count()).where(AssignmentRow.device.in_(devices))
    gone = {
        (rollout, wave, hardware_class, state): -n
        for rollout, wave, hardware_class, state, n in session.execute(counted.group_by(*place))
    }
    session.execute(delete(AssignmentRow).where(AssignmentRow.device.in_(devices)))
    _count(session, gone)


def counts_by_class(
    session: Session, rollouts: Iterable[int]
) -> dict[int, dict[str, tuple[Counter[str], ...]]]:
    """Count assignments by state for each rollout, hardware class and wave, waves in order."""
    found: dict[int, dict[tuple[str, int], Counter[str]]] = {rollout: {} for rollout in rollouts}
    for rollout, wave, hardware_class, *numbers in session.execute(
        _COUNTS, {"rollouts": list(found)}
    ):
        found[rollout][hardware_class, wave] = Counter(
            {state: n for state, n in zip(STATES, numbers, strict=True) if n}
        )
    return {
        rollout: {
            name: tuple(
                places.get((name, wave), Counter())
                for wave in range(max((wave for _, wave in places), default=-1) + 1)
            )
            for name in sorted({name for name, _ in places})
        }
        for rollout, places in found.items()
    }


def counts(session: Session, rollouts: Iterable[int]) -> dict[int, tuple[Counter[str], ...]]:
    """Count assignments by state for each rollout and wave, waves in order."""
    return {
        rollout: tuple(sum(same, Counter[str]()) for same in zip(*classes.values(), strict=True))
        for rollout, classes in counts_by_class(session, rollouts).items()
    }


def _execute(
    session: Session, statement: Update | Insert, changes: Sequence[Mapping[str, object]]
) -> None:
    if changes:
        session.connection().execute(statement, changes)


def _count_moves(session: Session, moves: Iterable[tuple[Assignment, str]]) -> None:
    changes: Counter[tuple[int, int, str, str]] = Counter()
    for assignment, state in moves:
        changes[
            assignment.rollout, assignment.wave, assignment.hardware_class, assignment.state
        ] -= 1
        changes[assignment.rollout, assignment.wave, assignment.hardware_class, state] += 1
    _count(session, changes)


def _count(session: Session, changes: Mapping[tuple[int, int, str, str], int]) -> None:
    """Add to the counters of waves, always in the same order, so that writers cannot deadlock."""
    none = dict.fromkeys(STATES, 0)
    by_place: dict[tuple[int, int, str], dict[str, int]] = defaultdict(lambda: dict(none))
    for (rollout, wave, hardware_class, state), change in sorted(changes.items()):
        if change:
            by_place[rollout, wave, hardware_class][state] = change
    rows = [
        {"b_rollout": rollout, "b_wave": wave, "b_class": hardware_class, **moved}
        for (rollout, wave, hardware_class), moved in by_place.items()
    ]
    _execute(session, _COUNT, rows)
