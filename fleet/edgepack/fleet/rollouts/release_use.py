"""Uses of a release that prevent its deletion."""

from collections.abc import Set as AbstractSet
from itertools import groupby

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import audit
from edgepack.fleet.database.audit import Entry
from edgepack.fleet.database.reports import serving_of
from edgepack.fleet.database.schema import DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.documents.releases import full_title
from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.rollouts.offers import name_of
from edgepack.fleet.rollouts.rules import OPEN
from edgepack.text import counted, natural_order
from edgepack.wire.messages import decode
from edgepack.wire.orders import Desired, RunModel


def delete_release(session: Session, release: ReleaseRow, now: float) -> None:
    """Mark a release as deleted; its name, version and counter stay taken.

    Raises:
        FleetError: A device runs, keeps or is ordered to run the release, a rollout of the release
            is unfinished, or new devices would get the release.
    """
    reasons = [*_rollouts(session, release), *_devices(session, release)]
    if reasons:
        raise FleetError(
            f"{full_title(release.bundle)} is in use",
            found_in="; ".join(reasons),
            remedy="roll another release out to them first, or abort the rollout",
        )
    release.deleted_at = now
    title = full_title(release.bundle)
    entry = Entry(action="release.delete", model=release.name, digest=release.digest, because=title)
    audit.note(session, now, entry)


def find_unneeded(session: Session, keep: int) -> tuple[ReleaseRow, ...]:
    """Release that nothing points to, and that are not among the newest of their model.

    Args:
        session: The transaction.
        keep: How many of the newest of each model are left out.

    Returns:
        By model, the newest first.
    """
    query = select(ReleaseRow).where(ReleaseRow.deleted_at.is_(None))
    rows = session.scalars(query.order_by(ReleaseRow.name, ReleaseRow.release.desc()))
    old = [row for _, of_model in groupby(rows, lambda row: row.name) for row in [*of_model][keep:]]
    held = _held(session, {row.name for row in old})
    return tuple(row for row in old if row.digest not in held and not _rollouts(session, row))


def _rollouts(session: Session, release: ReleaseRow) -> list[str]:
    query = (
        select(RolloutRow)
        .join(ReleaseRow, RolloutRow.digest == ReleaseRow.digest)
        .where(ReleaseRow.name == release.name, RolloutRow.state != "ABORTED")
        .order_by(RolloutRow.number.desc())
    )
    reasons: list[str] = []
    seen: set[Selector] = set()
    for rollout in session.scalars(query):
        is_open = rollout.state in OPEN
        is_joined = rollout.selector.kind != "devices" and rollout.selector not in seen
        seen.add(rollout.selector)
        if is_open and release.digest in (rollout.digest, rollout.takes_back):
            reasons.append(f"rollout {name_of(rollout.number)} is {rollout.state}")
        elif is_joined and rollout.digest == release.digest:
            joins = f"who joins {rollout.selector} gets it by rollout {name_of(rollout.number)}"
            reasons.append(joins)
    return reasons


def _devices(session: Session, release: ReleaseRow) -> list[str]:
    users = sorted(_held(session, {release.name}).get(release.digest, ()), key=natural_order)
    return [f"{counted(len(users), 'device')} ({users[0]})"] if users else []


def _held(session: Session, models: AbstractSet[str]) -> dict[str, list[str]]:
    """Return the devices that run, keep or are ordered to run a release of some models, by its
    digest.
    """
    users: dict[str, list[str]] = {}
    query = select(DeviceRow.id, DeviceRow.desired, DeviceRow.reported)
    for device, told, reported in session.execute(query):
        orders = decode(told.encode(), Desired).models if told else {}
        for model in models:
            order = orders.get(model)
            held = [*serving_of(reported, model)]
            held.append(order.bundle if isinstance(order, RunModel) else None)
            for digest in {bundle.digest for bundle in held if bundle is not None}:
                users.setdefault(digest, []).append(device)
    return users
