"""Devices as people see them: listed, selected, counted by group, and one in full."""

from collections import Counter
from collections.abc import Sequence

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database.devices import find_devices, last_report, simulated_providers, wanted
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.database.where import EXAMPLE, FACTS, ROW, attributes, labels, parse_where
from edgepack.fleet.documents.devices import (
    DeviceDetails,
    DevicePart,
    DeviceView,
    GroupView,
    ModelView,
)
from edgepack.text import natural_order
from edgepack.wire.messages import ModelOrder, ReportedModel, RunModel

MAX_WARNINGS, MAX_TEXT = 20, 2000
"""Warnings of a device that are shown, and how much of each."""


def list_devices(session: Session, group: str = "", where: str = "") -> tuple[DeviceView, ...]:
    """All devices, or those of a group, or those that an expression means, by id.

    Raises:
        FleetError: The expression makes no sense.
    """
    rows = find_where(session, where) if where else session.scalars(select(DeviceRow)).all()
    kept = (row for row in rows if not group or row.group == group)
    return tuple(_view(row) for row in sorted(kept, key=lambda row: natural_order(row.id)))


def find_where(session: Session, text: str) -> Sequence[DeviceRow]:
    """The devices that an expression means now.

    Raises:
        FleetError: The expression makes no sense, or speaks of what no device has.
    """
    where = parse_where(text)
    rows = session.scalars(select(DeviceRow)).all()
    named = {key for row in rows for key in labels(row)}
    known = {*FACTS, *ROW, *named}
    if unknown := sorted(where.keys - known):
        raise FleetError(
            f"no device has a label {unknown[0]!r}, and it is no fact that they report",
            found_in=f"labels: {', '.join(sorted(named)) or 'none'}; "
            f"facts: {', '.join(sorted({*FACTS, *ROW}))}",
            remedy=EXAMPLE,
        )
    return [row for row in rows if where.matches(attributes(row))]


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
