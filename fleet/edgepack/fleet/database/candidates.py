"""Candidates of a rollout that is about to begin, with the requested columns only.

Candidates are read page by page by their columns, and only the requested parts of a report are
decoded: the reports of a large fleet take gigabytes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database.inventory import read_where
from edgepack.fleet.database.reports import facts_of, serving_of
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow
from edgepack.fleet.database.where import Attributes, Where, attributes
from edgepack.fleet.documents.rollouts import Selector
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import DeviceFacts

PAGE = 2000
"""Devices that are read at once."""


class Candidate(NamedTuple):
    """A device and its release of a model.

    Attributes:
        id, online, hardware_class: See `DeviceRow`.
        runs: The serving release, from the last report; None while nothing serves.
        kept: The older release to go back to.
        attributes: The requested labels and facts.
        facts: The reported facts, if requested.
        base: The serving release of the requested base of an adapter; None while nothing serves.
    """

    id: str
    online: bool
    hardware_class: str
    runs: BundleRef | None
    kept: BundleRef | None
    attributes: Attributes
    facts: DeviceFacts | None
    base: BundleRef | None = None


class Asked(NamedTuple):
    """Attributes to read of devices.

    Attributes:
        model: Model whose serving release is read.
        keys: The labels and facts.
        with_facts: Whether to read all reported facts.
        base: Base of the model, if the model is an adapter; "" for another model.
    """

    model: str
    keys: frozenset[str] = frozenset()
    with_facts: bool = False
    base: str = ""


_NONE: Attributes = {}
_QUERY = select(
    DeviceRow.id,
    DeviceRow.online,
    DeviceRow.hardware_class,
    DeviceRow.reported,
    DeviceRow.group,
    DeviceRow.labels,
).order_by(DeviceRow.id)
_PAGE = _QUERY.where(DeviceRow.id > bindparam("after")).limit(PAGE)
_OF_GROUP = _PAGE.where(DeviceRow.group == bindparam("group"))
_NAMED = _QUERY.where(DeviceRow.id.in_(bindparam("names", expanding=True)))
_COMMITTED = _PAGE.join(AssignmentRow, AssignmentRow.device == DeviceRow.id).where(
    AssignmentRow.rollout == bindparam("rollout"), AssignmentRow.state == "COMMITTED"
)
_COMMITTED_OF_CLASS = _COMMITTED.where(AssignmentRow.hardware_class == bindparam("hardware_class"))


_Query = Select[str, bool, str, str | None, str, str]


class _Row(NamedTuple):
    """A device as read from the database, with the attributes for expressions."""

    id: str
    online: bool
    hardware_class: str
    reported: str | None
    group: str
    labels: str


def select_candidates(session: Session, selector: Selector, asked: Asked) -> list[Candidate]:
    """Return the devices that a selector means now, in the order of their ids.

    Raises:
        FleetError: No device matches, a named device is not enrolled, or an expression is invalid.
    """
    where = read_where(session, selector.where) if selector.kind == "where" else None
    match selector.kind:
        case "devices":
            rows = _read_named(session, sorted(set(selector.devices)))
        case "group":
            rows = _read_pages(session, _OF_GROUP, {"group": selector.group})
        case _:
            rows = _read_pages(session, _PAGE, {})
    found = list(_see(rows, asked, where))
    if selector.kind == "devices" and len(found) < len(set(selector.devices)):
        known = {one.id for one in found}
        missing = [name for name in dict.fromkeys(selector.devices) if name not in known]
        raise FleetError(
            f"not enrolled: {', '.join(missing)}",
            remedy=f"edgepack fleet enroll {missing[0]} --group GROUP -o FOLDER",
        )
    if not found:
        groups = session.scalars(select(DeviceRow.group).distinct().order_by(DeviceRow.group))
        raise FleetError(
            {
                "all": "no device is enrolled",
                "group": f"no device is enrolled in {selector}",
            }.get(selector.kind, f"there are no {selector}"),
            found_in=f"groups: {', '.join(groups) or 'none'}",
            remedy="edgepack fleet enroll cam-7 --group cameras -o cam-7/",
        )
    return found


def committed_candidates(
    session: Session, rollout: int, asked: Asked, hardware_class: str | None = None
) -> list[Candidate]:
    """Return the devices that committed a rollout's release: all, or a single hardware class."""
    values: dict[str, object] = {"rollout": rollout}
    if hardware_class is None:
        return list(_see(_read_pages(session, _COMMITTED, values), asked))
    values["hardware_class"] = hardware_class
    return list(_see(_read_pages(session, _COMMITTED_OF_CLASS, values), asked))


def _read_pages(session: Session, query: _Query, values: Mapping[str, object]) -> Iterator[_Row]:
    after = ""
    while page := session.execute(query, {**values, "after": after}).all():
        yield from (_Row(*row) for row in page)
        after = page[-1][0]


def _read_named(session: Session, names: Sequence[str]) -> Iterator[_Row]:
    for first in range(0, len(names), PAGE):
        some = names[first : first + PAGE]
        yield from (_Row(*row) for row in session.execute(_NAMED, {"names": some}))


def _see(rows: Iterable[_Row], asked: Asked, where: Where | None = None) -> Iterator[Candidate]:
    for row in rows:
        found = attributes(row) if where is not None or asked.keys else _NONE
        if where is None or where.matches(found):
            yield Candidate(
                row.id,
                row.online,
                row.hardware_class,
                *serving_of(row.reported, asked.model),
                {key: found[key] for key in asked.keys if key in found} if asked.keys else _NONE,
                facts_of(row.reported) if asked.with_facts else None,
                serving_of(row.reported, asked.base)[0] if asked.base else None,
            )
