"""Views of devices: list, selection, counts by group, and a device in full."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec
from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from edgepack.decoding import decode_json
from edgepack.errors import FleetError
from edgepack.fleet.database import certificates
from edgepack.fleet.database.devices import find_devices, last_report, wanted
from edgepack.fleet.database.natural_pages import ids_after
from edgepack.fleet.database.reports import simulated_providers
from edgepack.fleet.database.schema import (
    AssignmentRow,
    DeviceModelRow,
    DeviceRow,
    ReleaseRow,
    RolloutRow,
)
from edgepack.fleet.database.views import view_of
from edgepack.fleet.database.where import (
    EXAMPLE,
    FACTS,
    ROW,
    Where,
    attributes,
    labels,
    parse_where,
)
from edgepack.fleet.documents.devices import (
    SIMULATED,
    DeviceDetails,
    DeviceFilter,
    DevicePart,
    DeviceView,
    GroupView,
    ModelView,
)
from edgepack.text import natural_order
from edgepack.wire.orders import ModelOrder, RunModel
from edgepack.wire.reports import ReportedModel

ALL = DeviceFilter()
PAGE = 500
"""Devices that are read at once."""
MAX_ROLLOUTS = 100
"""Of a device, the newest."""
MAX_WARNINGS, MAX_TEXT = 20, 2000
"""Warnings of a device that are shown, and how much of each."""


def list_devices(
    session: Session, wanted: DeviceFilter = ALL, *, after: str = "", limit: int = PAGE
) -> tuple[DeviceView, ...]:
    """Return a page of all devices, or of some.

    Args:
        session: The transaction.
        wanted: Which.
        after: The last device of the page before; "" for the first page.
        limit: At most so many.

    Returns:
        In natural order of their ids, or in the database's if there are very many (see
        `natural_pages`); an empty page is the last.

    Raises:
        FleetError: The expression makes no sense.
    """
    conditions = tuple(_conditions(wanted))
    found: Iterable[DeviceRow]
    names = ids_after(session, select(DeviceRow.id).where(*conditions), after)
    if names is None:
        query = select(DeviceRow).where(DeviceRow.id > after, *conditions).order_by(DeviceRow.id)
        if not wanted.where:
            query = query.limit(limit)
        found = session.scalars(query.execution_options(yield_per=min(limit, PAGE)))
    else:
        found = _rows_of(session, names, min(limit, PAGE))
    if wanted.where:
        where = read_where(session, wanted.where)
        found = (row for row in found if where.matches(attributes(row)))
    return tuple(_view(row) for row in islice(found, limit))


def _rows_of(session: Session, names: Sequence[str], at_once: int) -> Iterator[DeviceRow]:
    """Yield the rows of devices in the order of their names, read piece by piece."""
    for first in range(0, len(names), max(at_once, 1)):
        some = names[first : first + max(at_once, 1)]
        rows = session.scalars(select(DeviceRow).where(DeviceRow.id.in_(some)))
        by_id = {row.id: row for row in rows}
        yield from (by_id[name] for name in some if name in by_id)


def count_devices(session: Session, wanted: DeviceFilter) -> int | None:
    """Return the number of devices in a list; None if an expression must be evaluated for each
    device.
    """
    if wanted.where:
        return None
    return session.scalar(select(func.count(DeviceRow.id)).where(*_conditions(wanted)))


def _conditions(wanted: DeviceFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.group:
        yield DeviceRow.group == wanted.group
    if wanted.hardware_class:
        yield DeviceRow.hardware_class == wanted.hardware_class
    if wanted.online:
        yield DeviceRow.online.is_(wanted.online == "yes")
    match wanted.standing:
        case "":
            pass
        case "behind":
            unheard = DeviceRow.desired_sequence != DeviceRow.reported_sequence
            yield or_(DeviceRow.standing == "updating", unheard)
        case "unheard":
            yield DeviceRow.standing == ""
        case standing:
            yield DeviceRow.standing == standing
    if wanted.model or wanted.digest:
        row = DeviceModelRow
        having = select(row.device).where(row.state != "REMOVED")
        if wanted.model:
            having = having.where(row.name == wanted.model)
        if wanted.digest:
            digest = "" if wanted.digest == "none" else wanted.digest
            having = having.where(row.digest == digest)
        yield DeviceRow.id.in_(having)


def read_where(session: Session, text: str, *, also: Iterable[str] = ()) -> Where:
    """Parse an expression over labels, facts and further named keys.

    Raises:
        FleetError: The expression is invalid, or uses a key that no device has.
    """
    where = parse_where(text)
    all_labels = session.scalars(select(DeviceRow.labels).distinct())
    named = {key for found in all_labels for key in decode_json(found, dict[str, str])}
    known = {*FACTS, *ROW, *named, *also}
    if unknown := sorted(where.keys - known):
        raise FleetError(
            f"no device has a label {unknown[0]!r}, and it is not a fact that they report",
            found_in=f"labels: {', '.join(sorted(named)) or 'none'}; "
            f"facts: {', '.join(sorted({*FACTS, *ROW}))}",
            remedy=EXAMPLE,
        )
    return where


def list_groups(session: Session) -> tuple[GroupView, ...]:
    """Return all groups, by name."""
    counts, online = Counter[str](), Counter[str]()
    key = (DeviceRow.group, DeviceRow.online)
    for group, is_online, count in session.execute(select(*key, func.count()).group_by(*key)):
        counts[group] += count
        online[group] += count * is_online
    return tuple(
        GroupView(group=group, devices=counts[group], online=online[group])
        for group in sorted(counts, key=natural_order)
    )


def show_device(session: Session, device: str) -> DeviceDetails:
    """Return a device in full.

    Raises:
        FleetError: The device is not enrolled.
    """
    (row,) = find_devices(session, (device,))
    reported = last_report(row)
    query = (
        select(AssignmentRow, ReleaseRow)
        .join(RolloutRow, AssignmentRow.rollout == RolloutRow.number)
        .join(ReleaseRow, RolloutRow.digest == ReleaseRow.digest)
        .where(AssignmentRow.device == device)
        .order_by(AssignmentRow.rollout.desc())
        .limit(MAX_ROLLOUTS)
    )
    newest = next(iter(certificates.of_device(session, device)), None)
    return DeviceDetails(
        **msgspec.structs.asdict(_view(row)),
        enrolled_at=row.enrolled_at,
        certificate=row.certificate,
        certificate_ends_at=newest.expires_at if newest else None,
        certificate_pem=newest.pem if newest else "",
        obeys_unsigned=reported is not None
        and reported.facts is not None
        and reported.facts.agent_version != SIMULATED
        and reported.trust is None,
        facts=reported.facts if reported else None,
        rollouts=tuple(
            DevicePart(
                rollout=f"r{part.rollout}",
                bundle=release.bundle,
                state=part.state,
                because=part.because,
            )
            for part, release in session.execute(query)
        ),
        choices={
            name: model.active.choice
            for name, model in (reported.models if reported else {}).items()
            if model.active
        },
    )


def _view(row: DeviceRow) -> DeviceView:
    reported, desired = last_report(row), wanted(row)
    said = reported.models if reported else {}
    orders = desired.models if desired else {}
    return view_of(
        DeviceView,
        row,
        device=row.id,
        labels=labels(row),
        models=tuple(
            _view_model(name, said.get(name), orders.get(name), simulated_providers(row.reported))
            for name in sorted(said.keys() | orders.keys())
        ),
        warnings=tuple(text[:MAX_TEXT] for text in reported.warnings[:MAX_WARNINGS])
        if reported
        else (),
    )


def _view_model(
    name: str,
    said: ReportedModel | None,
    order: ModelOrder | None,
    simulated: frozenset[str],
) -> ModelView:
    active = said.active if said else None
    return ModelView(
        name=name,
        state=said.state if said else "",
        because=said.because if said else "",
        progress=said.progress if said else 0.0,
        active=active.bundle if active else None,
        variant=active.choice.chosen if active else "",
        provider=active.choice.provider if active else "",
        is_simulator=active is not None and active.choice.provider in simulated,
        is_fallback=active.choice.is_fallback if active else False,
        choice_because=active.choice.because if active else "",
        wanted=order.bundle if isinstance(order, RunModel) else None,
        rollout=order.rollout if order else "",
        outcomes=said.outcomes if said else None,
        drift=said.drift if said else None,
        watch=said.watch if said else None,
    )
