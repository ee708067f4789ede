"""Overview of the fleet, counted by indexes, with a few of its problems."""

from collections import defaultdict

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from edgepack.fleet.database.devices import last_report
from edgepack.fleet.database.schema import DeviceModelRow, DeviceRow
from edgepack.fleet.database.standing import DEGRADED, FAILED_STATES, is_degraded
from edgepack.fleet.documents.overview import DeviceCounts, ReleaseShare, Trouble
from edgepack.text import natural_order

TROUBLED = ("degraded", "failing", "warned")
"""Standings that need a person, the most urgent first."""
MAX_TROUBLE = 40
"""Devices of each of these standings that are looked at."""
MAX_RELEASES = 40
MAX_TEXT = 2000


def count_standing(session: Session) -> DeviceCounts:
    """Return numbers of devices by standing."""
    is_behind = DeviceRow.desired_sequence != DeviceRow.reported_sequence
    key = (DeviceRow.standing, DeviceRow.online, DeviceRow.symptom, is_behind)
    numbers: dict[str, int] = defaultdict(int)
    symptoms: dict[str, int] = defaultdict(int)
    for standing, online, symptom, behind, count in session.execute(
        select(*key, func.count()).group_by(*key)
    ):
        numbers["enrolled"] += count
        numbers["online"] += count * bool(online)
        numbers["behind"] += count * bool(behind or standing == "updating")
        if standing in (*TROUBLED, ""):
            numbers[standing or "unheard"] += count
        if symptom:
            symptoms[symptom] += count
    return DeviceCounts(**numbers, symptoms=dict(symptoms))


def list_trouble(session: Session, limit: int = MAX_TROUBLE) -> tuple[Trouble, ...]:
    """Return examples of degraded, failing and warning devices, by reason.

    Online devices come first.
    """
    found: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for standing in TROUBLED:
        rows = session.scalars(
            select(DeviceRow)
            .where(DeviceRow.standing == standing)
            .order_by(DeviceRow.online.desc(), DeviceRow.id)
            .limit(limit)
        )
        for row in rows:
            found[standing, *_reason(row)].append(row.id)
    most_first = sorted(found.items(), key=lambda one: (TROUBLED.index(one[0][0]), -len(one[1])))
    return tuple(
        Trouble(
            standing=standing,
            model=model,
            state=state,
            because=because,
            devices=tuple(sorted(names, key=natural_order)),
        )
        for (standing, model, state, because), names in most_first
    )


def share_releases(
    session: Session, model: str = "", limit: int = MAX_RELEASES
) -> tuple[ReleaseShare, ...]:
    """Return the serving releases of a model or of all, most frequent first within a model."""
    row = DeviceModelRow
    key = (row.name, row.digest, row.version)
    query = select(*key, func.count()).where(row.state != "REMOVED").group_by(*key)
    if model:
        query = query.where(row.name == model)
    counted = session.execute(query.order_by(func.count().desc()).limit(limit)).all()
    names = sorted({name for name, *_ in counted})
    totals = select(row.name, func.count()).where(row.name.in_(names), row.state != "REMOVED")
    of_model = dict(session.execute(totals.group_by(row.name)).tuples().all())
    shares = [
        ReleaseShare(
            model=name,
            version=version,
            digest=digest,
            devices=count,
            share=count / of_model[name],
        )
        for name, digest, version, count in counted
    ]
    return tuple(sorted(shares, key=lambda share: (share.model, -share.devices, share.version)))


def _reason(row: DeviceRow) -> tuple[str, str, str]:
    """Return failed model, state and reason of a device, or its warning."""
    reported = last_report(row)
    for name, said in reported.models.items() if reported else ():
        if said.watch is not None and is_degraded(said):
            return name, DEGRADED, said.watch.because[:MAX_TEXT]
    for name, said in reported.models.items() if reported else ():
        if said.state in FAILED_STATES:
            because = said.because or f"{name} is {said.state}, and the device gave no reason"
            return name, said.state, because[:MAX_TEXT]
    return "", "", "; ".join(reported.warnings if reported else ())[:MAX_TEXT]
