"""Views of rollouts for users."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec
from sqlalchemy import and_, exists, or_, select
from sqlalchemy.orm import Session, aliased

from edgepack.fleet.database import assignments, latency_views
from edgepack.fleet.database.natural_pages import ids_after
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.database.views import view_of
from edgepack.fleet.documents.rollouts import (
    AssignmentView,
    RolloutView,
)
from edgepack.fleet.rollouts.decision import show_gates
from edgepack.fleet.rollouts.offers import name_of
from edgepack.text import natural_order
from edgepack.wire.messages import decode
from edgepack.wire.reports import Reported


def list_rollouts(
    session: Session, *, state: str = "", model: str = "", before: int = 0, limit: int = 0
) -> tuple[RolloutView, ...]:
    """Return rollouts, the newest first, without their devices.

    Args:
        session: The transaction.
        state: Only rollouts in this state; "" means all.
        model: Only rollouts of this model; "" means all.
        before: Only rollouts with a lower number; 0 sets no bound.
        limit: At most so many; 0 sets no bound.
    """
    query = select(RolloutRow).order_by(RolloutRow.number.desc())
    if state:
        query = query.where(RolloutRow.state == state)
    if model:
        of_model = select(ReleaseRow.digest).where(ReleaseRow.name == model)
        query = query.where(RolloutRow.digest.in_(of_model))
    if before:
        query = query.where(RolloutRow.number < before)
    rows = session.scalars(query.limit(limit or None)).all()
    counts = assignments.counts(session, (row.number for row in rows))
    return tuple(_view(session, row, counts[row.number]) for row in rows)


ENDED_WITHIN_S = 14 * 24 * 3600.0
"""How long the end of a rollout that a gate stopped is listed as something for a person."""


def list_needing_a_person(session: Session, now: float, limit: int) -> tuple[RolloutView, ...]:
    """Return rollouts that a person has to look at, the newest first.

    1. Rollouts that are paused.
    2. Rollouts whose next wave waits for approval.
    3. Rollouts that a gate ended, or that held a hardware class back or set a device aside, until a
       later rollout of the model starts.
    """
    later, later_release = aliased(RolloutRow), aliased(ReleaseRow)
    release = aliased(ReleaseRow)
    is_superseded = (
        exists()
        .where(
            later.digest == later_release.digest,
            later_release.name == release.name,
            later.number > RolloutRow.number,
            later.takes_back == "",
        )
        .correlate(RolloutRow, release)
    )
    query = (
        select(RolloutRow)
        .join(release, RolloutRow.digest == release.digest)
        .where(
            or_(
                RolloutRow.state == "PAUSED",
                and_(
                    RolloutRow.state == "RUNNING",
                    RolloutRow.waits_reason.in_(("approval", "evidence")),
                ),
                and_(
                    RolloutRow.state.in_(("ABORTED", "FINISHED")),
                    or_(
                        RolloutRow.stopped_by != "",
                        RolloutRow.held != {},
                        RolloutRow.set_aside != (),
                    ),
                    RolloutRow.changed_at > now - ENDED_WITHIN_S,
                    ~is_superseded,
                ),
            )
        )
    )
    rows = session.scalars(query.order_by(RolloutRow.number.desc()).limit(limit)).all()
    counts = assignments.counts(session, (row.number for row in rows))
    return tuple(_view(session, row, counts[row.number]) for row in rows)


def list_stopped_releases(session: Session) -> dict[str, str]:
    """Return the releases that were rolled back, or that a gate stopped.

    A person who aborts a rollout after a breach ends the rollout; the breach still holds for the
    release.

    Returns:
        By digest: the reasons, in the order of the rollouts.
    """
    query = select(RolloutRow).where(
        or_(
            RolloutRow.stopped_by != "",
            RolloutRow.takes_back != "",
            and_(RolloutRow.state == "ABORTED", RolloutRow.decided != ()),
        )
    )
    found: defaultdict[str, list[str]] = defaultdict(list)
    for row in session.scalars(query.order_by(RolloutRow.number)):
        name = name_of(row.number)
        if row.takes_back:
            found[row.takes_back].append(f"rolled back in {name}")
        breaches = [view for view in row.decided if view.verdict in ("breach", "hold")]
        if breaches:
            gate = breaches[0]
            found[row.digest].append(f"stopped by gate {gate.name} in {name}: {gate.because}")
        elif row.stopped_by:
            found[row.digest].append(f"stopped by {row.stopped_by} in {name}: {row.because}")
    return {digest: "; ".join(reasons) for digest, reasons in found.items()}


MAX_ASSIGNMENTS = 200
"""Devices that are shown with a rollout; `list_assignments` has the others."""
_SHOWN_FIRST = (
    *("FAILED", "SILENT", "WORKING", "OFFERED"),
    *("WITHDRAWN", "RECALLED", "COMMITTED", "WAITING"),
)
"""Of more devices than are shown, those that need a look."""


def show_rollout(session: Session, rollout: RolloutRow) -> RolloutView:
    """Return a rollout with its assignments and the latency of its release."""
    waves = assignments.counts(session, (rollout.number,))[rollout.number]
    found = first_assignments(session, rollout, MAX_ASSIGNMENTS)
    shown = tuple(sorted(found, key=lambda view: (view.wave, natural_order(view.device))))
    gates, at = show_gates(session, rollout)
    return msgspec.structs.replace(
        _view(session, rollout, waves),
        assignments=shown,
        latency=latency_views.latency_of(session, rollout),
        gates=gates,
        gates_at=at,
    )


def first_assignments(
    session: Session, rollout: RolloutRow, limit: int
) -> tuple[AssignmentView, ...]:
    """Return some assignments of a rollout, starting with assignments that need attention."""
    counts = sum(assignments.counts(session, (rollout.number,))[rollout.number], Counter[str]())
    found: list[AssignmentView] = []
    for state in _SHOWN_FIRST:
        if counts[state] and len(found) < limit:
            found += list_assignments(session, rollout, state=state, limit=limit - len(found))
    return tuple(found)


def show_head(session: Session, rollout: RolloutRow) -> RolloutView:
    """Return a rollout with its waves, without its gates and its devices."""
    return _view(session, rollout, assignments.counts(session, (rollout.number,))[rollout.number])


def list_assignments(
    session: Session,
    rollout: RolloutRow,
    *,
    state: str = "",
    wave: int = 0,
    after: str = "",
    limit: int,
) -> tuple[AssignmentView, ...]:
    """Return a page of a rollout's assignments, of all states or of a single state, by device name.

    The order is natural, or the database's if there are very many (see `natural_pages`).

    Args:
        session: The transaction.
        rollout: The rollout.
        state: "" means all.
        wave: From 1; 0 means all.
        after: The last device of the page before; "" for the first page.
        limit: At most so many.
    """
    conditions = [AssignmentRow.rollout == rollout.number]
    if state:
        conditions.append(AssignmentRow.state == state)
    if wave:
        conditions.append(AssignmentRow.wave == wave - 1)
    query = (
        select(AssignmentRow, DeviceRow.reported)
        .join(DeviceRow, AssignmentRow.device == DeviceRow.id)
        .where(*conditions)
    )
    names = ids_after(session, select(AssignmentRow.device).where(*conditions), after)
    if names is None:
        query = query.where(AssignmentRow.device > after).order_by(AssignmentRow.device)
        query = query.limit(limit)
    else:
        query = query.where(AssignmentRow.device.in_(names[:limit]))
    name = session.get_one(ReleaseRow, rollout.digest).name
    rows = session.execute(query, execution_options={"populate_existing": True})
    found = [_part(row, reported, name) for row, reported in rows]
    return tuple(
        found if names is None else sorted(found, key=lambda view: natural_order(view.device))
    )


def _view(session: Session, row: RolloutRow, waves: Sequence[Counter[str]]) -> RolloutView:
    taken_back = session.get(ReleaseRow, row.takes_back) if row.takes_back else None
    return view_of(
        RolloutView,
        row,
        rollout=name_of(row.number),
        bundle=session.get_one(ReleaseRow, row.digest).bundle,
        selector=str(row.selector),
        wave=row.wave + 1,
        waits_for=row.waits_for if row.state == "RUNNING" else "",
        waits_reason=row.waits_reason if row.state == "RUNNING" else "",
        takes_back=taken_back.bundle if taken_back else None,
        counts=dict(sum(waves, Counter())),
        wave_counts=tuple(dict(wave) for wave in waves),
    )


def _part(row: AssignmentRow, encoded: str | None, name: str) -> AssignmentView:
    reported = decode(encoded.encode(), Reported) if encoded else None
    said = reported.models.get(name) if reported else None
    is_of_this = said is not None and said.sequence == row.sequence
    active = said.active if said else None
    return view_of(
        AssignmentView,
        row,
        wave=row.wave + 1,
        device_state=said.state if said and is_of_this else "",
        progress=said.progress if said and is_of_this else 0.0,
        provider=active.choice.provider if active else "",
        variant=active.choice.chosen if active else "",
    )
