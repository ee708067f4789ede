"""Devices' parts in rollouts. All that changes their state stands here, and counts it by wave.

The counters (`WaveRow`) change with the parts in one transaction, so they are always what a recount
would give, and whoever wants to know how a rollout stands reads as many rows as it has waves.
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
"""Of a part; each has a column in `WaveRow`."""
ADDED_AT_ONCE = 10_000


class Part(NamedTuple):
    """One device's part in a rollout as it was read; see `AssignmentRow`."""

    rollout: int
    device: str
    wave: int
    state: str
    sequence: int | None
    because: str
    before_digest: str
    hardware_class: str = ""
    site: str = ""


class Seat(NamedTuple):
    """Where a device's part is: the index of its wave, and what it is counted and limited by."""

    wave: int
    hardware_class: str
    site: str = ""
    zone: str = ""


class Limits(NamedTuple):
    """Who is not offered a release yet.

    Attributes:
        held: Hardware classes that are held back.
        closed: Time zones in which no maintenance window is open.
        max_per_site: Devices of a site that may be at it at once; 0 for any number.
    """

    held: Sequence[str] = ()
    closed: Sequence[str] = ()
    max_per_site: int = 0


class Note(NamedTuple):
    """What a part has come to; `decided_at` is None while it is undecided."""

    part: Part
    state: str
    because: str
    decided_at: float | None


class Told(NamedTuple):
    """A part whose device was just offered the release."""

    part: Part
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
_ADDED = ("rollout", "device", *Seat._fields)
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
    session: Session, rollout: int, states: Iterable[str], hardware_class: str | None = None
) -> list[Part]:
    """Parts of a rollout in one of these states: all, or those of a hardware class."""
    query = _PART.where(AssignmentRow.rollout == rollout, AssignmentRow.state.in_(tuple(states)))
    if hardware_class is not None:
        query = query.where(AssignmentRow.hardware_class == hardware_class)
    return [Part(*row) for row in session.execute(query)]


def of_devices(session: Session, devices: Iterable[str], states: Iterable[str]) -> list[Part]:
    """Parts of devices in one of these states, in whatever rollouts."""
    asked = {"devices": list(devices), "states": list(states)}
    return [Part(*row) for row in session.execute(_OF_DEVICES, asked)]


def of_release(session: Session, rollouts: Sequence[int], state: str) -> list[Part]:
    """Parts of several rollouts in a state."""
    query = _PART.where(AssignmentRow.rollout.in_(rollouts), AssignmentRow.state == state)
    return [Part(*row) for row in session.execute(query)]


def waiting(session: Session, rollout: int, wave: int, limit: int, limits: Limits) -> list[Part]:
    """Parts that wait in a wave or an earlier one, and may be offered the release now.

    Returns:
        Those of the earliest wave first, `limit` at most.
    """
    asked: dict[str, object] = {"rollout": rollout, "wave": wave, "limit": limit}
    asked |= {"held": list(limits.held), "closed": list(limits.closed)}
    if not limits.max_per_site:
        return [Part(*row) for row in session.execute(_WAITING, asked)]
    at_once = {"rollout": rollout, "max_per_site": limits.max_per_site}
    busy: Counter[str] = Counter()
    for site, number in session.execute(_BUSY, {"rollout": rollout}):
        busy[site] = number
    parts = []
    for row in session.execute(_WAITING_WHERE_ROOM, asked | at_once):
        part = Part(*row)
        if not part.site or busy[part.site] < limits.max_per_site:
            busy[part.site] += 1
            parts.append(part)
    return parts


def offered_before(
    session: Session, rollout: int, states: Iterable[str], before: float
) -> list[Part]:
    """Parts in one of these states whose offer is older; an index finds them, or that none is."""
    return [
        Part(*row)
        for state in states
        for row in session.execute(
            _OFFERED_BEFORE, {"rollout": rollout, "state": state, "before": before}
        )
    ]


def add(session: Session, rollout: int, seats: Iterable[tuple[str, Seat]]) -> None:
    """Gives devices a part that waits, each by its id; not those that have one, or have gone."""
    counted: Counter[tuple[int, str]] = Counter()
    left = iter(seats)
    while some := dict(islice(left, ADDED_AT_ONCE)):
        asked = {"rollout": rollout, "names": list(some)}
        page = [(name, some[name]) for name in session.scalars(_WITHOUT, asked)]
        counted.update((seat.wave, seat.hardware_class) for _, seat in page)
        rows = [dict(zip(_ADDED, (rollout, device, *seat), strict=True)) for device, seat in page]
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


def offer(session: Session, told: Sequence[Told]) -> None:
    """Notes what devices were offered."""
    changes = [
        {
            "b_rollout": one.part.rollout,
            "b_device": one.part.device,
            "sequence": one.sequence,
            "offered_at": one.offered_at,
            "before_digest": one.before_digest,
        }
        for one in told
    ]
    _execute(session, _OFFER, changes)
    _count_moves(session, ((one.part, "OFFERED") for one in told))


def note(session: Session, notes: Sequence[Note]) -> None:
    """Notes what parts have come to."""
    changes = [
        {
            "b_rollout": one.part.rollout,
            "b_device": one.part.device,
            "state": one.state,
            "because": one.because,
            "decided_at": one.decided_at,
        }
        for one in notes
    ]
    _execute(session, _NOTE, changes)
    _count_moves(session, ((one.part, one.state) for one in notes))


def withdraw_waiting(
    session: Session, rollout: int, now: float, hardware_class: str | None = None
) -> None:
    """Withdraws all parts that wait, or those of a hardware class, however many."""
    parts = update(AssignmentRow).where(
        AssignmentRow.rollout == rollout, AssignmentRow.state == "WAITING"
    )
    waves = update(WaveRow).where(WaveRow.rollout == rollout)
    if hardware_class is not None:
        parts = parts.where(AssignmentRow.hardware_class == hardware_class)
        waves = waves.where(WaveRow.hardware_class == hardware_class)
    moved = waves.values(withdrawn=WaveRow.withdrawn + WaveRow.waiting, waiting=0)
    for change in (parts.values(state="WITHDRAWN", decided_at=now), moved):
        session.execute(change.execution_options(synchronize_session=False))


def renumber(session: Session, part: Part, sequence: int) -> None:
    """Gives a part another sequence."""
    change = {"b_rollout": part.rollout, "b_device": part.device, "sequence": sequence}
    _execute(session, _RENUMBER, [change])


def remove(session: Session, devices: Sequence[str]) -> None:
    """Takes devices out of all rollouts that they are or were in."""
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
    """Parts by state: for each rollout by hardware class its waves in order."""
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
    """Parts by state: for each rollout its waves in order."""
    return {
        rollout: tuple(sum(same, Counter[str]()) for same in zip(*classes.values(), strict=True))
        for rollout, classes in counts_by_class(session, rollouts).items()
    }


def _execute(
    session: Session, statement: Update | Insert, changes: Sequence[Mapping[str, object]]
) -> None:
    if changes:
        session.connection().execute(statement, changes)


def _count_moves(session: Session, moves: Iterable[tuple[Part, str]]) -> None:
    changes: Counter[tuple[int, int, str, str]] = Counter()
    for part, state in moves:
        changes[part.rollout, part.wave, part.hardware_class, part.state] -= 1
        changes[part.rollout, part.wave, part.hardware_class, state] += 1
    _count(session, changes)


def _count(session: Session, changes: Mapping[tuple[int, int, str, str], int]) -> None:
    """Adds to the counters of waves; always in the same order, so that no two writers lock."""
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
