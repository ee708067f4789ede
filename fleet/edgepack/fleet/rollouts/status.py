"""Rollouts as people see them."""

from collections import Counter

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.fleet.database import devices, records
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.documents.rollouts import AssignmentView, RolloutView, Selector
from edgepack.fleet.rollouts.offers import name_of
from edgepack.text import natural_order


def list_rollouts(session: Session) -> tuple[RolloutView, ...]:
    """All rollouts, the newest first, without their devices."""
    rows = session.scalars(select(RolloutRow).order_by(RolloutRow.number.desc())).all()
    return tuple(_view(session, row) for row in rows)


def show_rollout(session: Session, rollout: RolloutRow) -> RolloutView:
    """A rollout with every device's part in it and the latency of what it rolled out."""
    query = (
        select(AssignmentRow, DeviceRow)
        .join(DeviceRow, AssignmentRow.device == DeviceRow.id)
        .where(AssignmentRow.rollout == rollout.number)
    )
    name = session.get_one(ReleaseRow, rollout.digest).name
    parts = (_part(row, device, name) for row, device in session.execute(query))
    assignments = tuple(sorted(parts, key=lambda part: (part.wave, natural_order(part.device))))
    return msgspec.structs.replace(
        _view(session, rollout),
        assignments=assignments,
        latency=records.latency_of(session, rollout),
    )


def _view(session: Session, row: RolloutRow) -> RolloutView:
    parts = session.scalars(select(AssignmentRow).where(AssignmentRow.rollout == row.number)).all()
    taken_back = session.get(ReleaseRow, row.takes_back) if row.takes_back else None
    return RolloutView(
        rollout=name_of(row.number),
        bundle=session.get_one(ReleaseRow, row.digest).bundle,
        selector=str(msgspec.json.decode(row.selector, type=Selector)),
        waves=row.waves,
        wave=row.wave + 1,
        wave_count=row.wave_count,
        state=row.state,
        because=row.because,
        started_at=row.started_at,
        changed_at=row.changed_at,
        soak_s=row.soak_s,
        min_inferences=row.min_inferences,
        deadline_s=row.deadline_s,
        max_failed_share=row.max_failed_share,
        min_sample=row.min_sample,
        on_breach=row.on_breach,
        takes_back=taken_back.bundle if taken_back else None,
        counts=dict(Counter(part.state for part in parts)),
    )


def _part(row: AssignmentRow, device: DeviceRow, name: str) -> AssignmentView:
    reported = devices.last_report(device)
    said = reported.models.get(name) if reported else None
    is_of_this = said is not None and said.sequence == row.sequence
    active = said.active if said else None
    return AssignmentView(
        device=row.device,
        wave=row.wave + 1,
        state=row.state,
        offered_at=row.offered_at,
        decided_at=row.decided_at,
        because=row.because,
        device_state=said.state if said and is_of_this else "",
        progress=said.progress if said and is_of_this else 0.0,
        provider=active.choice.provider if active else "",
        variant=active.choice.chosen if active else "",
    )
