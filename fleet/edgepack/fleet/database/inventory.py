"""Devices as people see them: listed, selected, counted by group, and one in full."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database.devices import find_devices, last_report, simulated_providers, wanted
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, ReleaseRow, RolloutRow
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
    DeviceDetails,
    DevicePart,
    DeviceView,
    GroupView,
    ModelView,
)
from edgepack.text import natural_order
from edgepack.wire.messages import ModelOrder, ReportedModel, RunModel

PAGE = 500
"""Devices that are read at once."""
MAX_WARNINGS, MAX_TEXT = 20, 2000
"""Warnings of a device that are shown, and how much of each."""


def list_devices(
    session: Session, group: str = "", where: str = "", *, after: str = "", limit: int = PAGE
) -> tuple[DeviceView, ...]:
    """A page of all devices, or of those of a group, or of those that an expression means.

    Args:
        session: The transaction.
        group, where: See `FleetClient.devices`.
        after: The last device of the page before; "" for the first page.
        limit: At most so many.

    Returns:
        In the order of their ids that the database has; an empty page is the last.

    Raises:
        FleetError: The expression makes no sense.
    """
    query = select(DeviceRow).where(DeviceRow.id > after).order_by(DeviceRow.id)
    if group:
        query = query.where(DeviceRow.group == group)
    found: Iterable[DeviceRow] = session.scalars(
        query.execution_options(yield_per=min(limit, PAGE))
    )
    if where:
        wanted = _read_where(session, where)
        found = (row for row in found if wanted.matches(attributes(row)))
    return tuple(_view(row) for row in islice(found, limit))


def find_where(session: Session, text: str) -> Sequence[DeviceRow]:
    """The devices that an expression means now.

    Raises:
        FleetError: The expression makes no sense, or speaks of what no device has.
    """
    where = _read_where(session, text)
    rows = session.scalars(select(DeviceRow).execution_options(yield_per=PAGE))
    return [row for row in rows if where.matches(attributes(row))]


def _read_where(session: Session, text: str) -> Where:
    where = parse_where(text)
    all_labels = session.scalars(select(DeviceRow.labels).distinct())
    named = {key for found in all_labels for key in msgspec.json.decode(found, type=dict[str, str])}
    known = {*FACTS, *ROW, *named}
    if unknown := sorted(where.keys - known):
        raise FleetError(
            f"no device has a label {unknown[0]!r}, and it is no fact that they report",
            found_in=f"labels: {', '.join(sorted(named)) or 'none'}; "
            f"facts: {', '.join(sorted({*FACTS, *ROW}))}",
            remedy=EXAMPLE,
        )
    return where


def list_groups(session: Session) -> tuple[GroupView, ...]:
    """All groups, by name."""
    counts, online = Counter[str](), Counter[str]()
    for group, is_online in session.execute(select(DeviceRow.group, DeviceRow.online)):
        counts[group] += 1
        online[group] += is_online
    return tuple(
        GroupView(group=group, devices=counts[group], online=online[group])
        for group in sorted(counts, key=natural_order)
    )


def show_device(session: Session, device: str) -> DeviceDetails:
    """One device in full.

    Raises:
        FleetError: It is not enrolled.
    """
    (row,) = find_devices(session, (device,))
    reported = last_report(row)
    query = (
        select(AssignmentRow, ReleaseRow)
        .join(RolloutRow, AssignmentRow.rollout == RolloutRow.number)
        .join(ReleaseRow, RolloutRow.digest == ReleaseRow.digest)
        .where(AssignmentRow.device == device)
        .order_by(AssignmentRow.rollout.desc())
    )
    return DeviceDetails(
        **msgspec.structs.asdict(_view(row)),
        enrolled_at=row.enrolled_at,
        certificate=row.certificate,
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
    )


def _view(row: DeviceRow) -> DeviceView:
    reported, desired = last_report(row), wanted(row)
    said = reported.models if reported else {}
    orders = desired.models if desired else {}
    return DeviceView(
        device=row.id,
        group=row.group,
        online=row.online,
        last_seen=row.last_seen,
        hardware_class=row.hardware_class,
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
    )
