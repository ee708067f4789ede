"""Rollback of a release: rollouts that lead each device to its previous release.

A device goes back to the single release that the device keeps for this purpose, and to no other
release. So the devices are divided by this release, and each target release gets a rollout of its
own, with waves, soak and thresholds; the devices confirm the target like any release.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.errors import FleetError
from edgepack.fleet.database import assignments
from edgepack.fleet.database.assignments import StateChange
from edgepack.fleet.database.candidates import (
    Asked,
    Candidate,
    committed_candidates,
    select_candidates,
)
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import ReleaseRow, RolloutRow
from edgepack.fleet.documents.previews import RollbackPart, RollbackPreview
from edgepack.fleet.documents.releases import full_title, title
from edgepack.fleet.documents.rollouts import RollbackRequest, RolloutSettings, Selector
from edgepack.fleet.releases.find import find_release
from edgepack.fleet.rollouts import counting, execution, judgement, membership
from edgepack.fleet.rollouts.offers import name_of
from edgepack.fleet.rollouts.preview import MAX_EXAMPLES, open_rollouts
from edgepack.fleet.rollouts.rules import OPEN
from edgepack.fleet.rollouts.settings import check_settings
from edgepack.fleet.rollouts.waves import divide, keys_of, parse_waves
from edgepack.text import counted, natural_order
from edgepack.wire.orders import BundleRef

_ROLLOUT = re.compile(r"r\d+")

IsReleased = Callable[[BundleRef], bool]
"""Whether the image repository lists a bundle: devices take back nothing that was withdrawn."""


class Obstacle(NamedTuple):
    """Obstacle to a device's way back.

    Attributes:
        because: Reason.
        is_withdrawn: Whether the reason is a withdrawn release.
        remedy: What a person can do.
    """

    because: str
    is_withdrawn: bool = False
    remedy: str = "edgepack fleet devices"


NOBODY = Obstacle("no device runs it")


class Plan(NamedTuple):
    """Plan of a rollback.

    Attributes:
        release: The release that is taken back.
        ended: The rollout that ends; None if a release was named.
        going: Devices, by digest of the target release.
        staying: By the obstacle to their way back: the devices.
    """

    release: ReleaseRow
    ended: RolloutRow | None
    going: dict[str, list[Candidate]]
    staying: dict[Obstacle, list[Candidate]]


def show_rollback(
    session: Session, request: RollbackRequest, is_released: IsReleased
) -> RollbackPreview:
    """Return the preview of a rollback that would start now.

    Args:
        session: The transaction.
        request: The request.
        is_released: See `IsReleased`.

    Raises:
        FleetError: The rollout or release does not exist, or a number is invalid.
    """
    steps = parse_waves(request.waves)
    check_settings(request)
    plan = _plan(session, request, is_released)
    parts = []
    for digest, rows in plan.going.items():
        waves = divide(rows, steps, "").values()
        to = session.get_one(ReleaseRow, digest).bundle
        parts.append(_part(rows, to=to, wave_count=max(waves) + 1))
    parts += [_part(rows, because=obstacle.because) for obstacle, rows in plan.staying.items()]
    return RollbackPreview(
        takes_back=plan.release.bundle,
        ends=_name_if(plan.ended, OPEN),
        closes=_name_if(plan.ended, {"FINISHED"}),
        parts=tuple(parts),
        refusal=_refusal(plan),
    )


def rollback(
    session: Session, request: RollbackRequest, now: float, is_released: IsReleased
) -> tuple[tuple[RolloutRow, ...], tuple[Publication, ...]]:
    """Take a release back.

    1. The rolled-back rollout ends; undecided devices stay with their previous release. When nobody
       has committed its release, that is all.
    2. Devices that committed the release go back in rollouts of their own.
    3. A rollout without remaining devices ends: new devices no longer get its release.

    Returns:
        The started rollouts, and messages to publish.

    Raises:
        FleetError: The rollout or release does not exist, no device can go back, or a number is
            invalid.
    """
    parse_waves(request.waves)
    check_settings(request)
    plan = _plan(session, request, is_released)
    if refusal := _refusal(plan):
        remedy = next(iter(plan.staying), NOBODY).remedy
        raise FleetError(refusal, found_in=request.what, remedy=remedy)
    # 1.
    publications: tuple[Publication, ...] = ()
    if plan.ended is not None and plan.ended.state != "ABORTED":
        publications = execution.abort(session, plan.ended, because="taken back", now=now)
    # 2.
    started = _lead_back(session, plan.release, plan.going, request, now)
    # 3.
    _end_empty(session, plan.release, now)
    return tuple(started), publications


class WayBack(NamedTuple):
    """Releases to which the devices of a rolled-back release return.

    Attributes:
        going: Devices, by digest of the target release.
        withdrawn: Number of devices that stay since their target release was withdrawn, and that
            release; "" for none.
    """

    going: dict[str, list[Candidate]]
    withdrawn: str

    @property
    def is_closed(self) -> bool:
        """True if no device can go back, because the previous release was withdrawn."""
        return bool(self.withdrawn) and not self.going


def find_way_back(
    session: Session, rollout: RolloutRow, is_released: IsReleased, name: str | None
) -> WayBack:
    """Look where devices of a hardware class go back to; None are all that committed."""
    release = session.get_one(ReleaseRow, rollout.digest)
    rows = committed_candidates(session, rollout.number, Asked(release.name), name)
    going, staying = _divide(session, release, rows, rollout, is_released)
    withdrawn = [
        f"{counted(len(rows), 'device')} cannot go back: {obstacle.because}"
        for obstacle, rows in staying.items()
        if obstacle.is_withdrawn
    ]
    return WayBack(going, "; ".join(withdrawn))


def take_back(
    session: Session, rollout: RolloutRow, way: WayBack, *, because: str, now: float
) -> tuple[Publication, ...]:
    """End a rollout that breached a gate, and lead all that can go back at once."""
    release = session.get_one(ReleaseRow, rollout.digest)
    publications = execution.abort(session, rollout, because=because, now=now)
    _lead_back(session, release, way.going, _at_once(rollout), now)
    return publications


def take_back_class(session: Session, rollout: RolloutRow, way: WayBack, now: float) -> None:
    """Lead devices of a hardware class back, while the rollout continues."""
    release = session.get_one(ReleaseRow, rollout.digest)
    _lead_back(session, release, way.going, _at_once(rollout), now)


def _at_once(rollout: RolloutRow) -> RolloutSettings:
    """Return the settings for an urgent rollback after a breach: all devices at once."""
    settings = rollout.settings
    return RolloutSettings(
        waves="100%",
        soak_s=settings.soak_s,
        deadline_s=settings.deadline_s,
        max_failed_share=settings.max_failed_share,
        min_sample=settings.min_sample,
    )


def _lead_back(
    session: Session,
    release: ReleaseRow,
    going: Mapping[str, Sequence[Candidate]],
    settings: RolloutSettings,
    now: float,
) -> list[RolloutRow]:
    """Start a rollout for each release that devices go back to."""
    started = []
    for digest, rows in going.items():
        rollout, _ = membership.begin(
            session,
            session.get_one(ReleaseRow, digest),
            rows,
            selector=Selector(kind="devices", devices=tuple(row.id for row in rows)),
            settings=settings,
            takes_back=release,
            now=now,
        )
        started.append(rollout)
        _recall(session, release, rows, f"goes back in {name_of(rollout.number)}", now)
    return started


def _plan(session: Session, request: RollbackRequest, is_released: IsReleased) -> Plan:
    keys = keys_of(parse_waves(request.waves)) | membership.seat_keys(request)
    ended: RolloutRow | None = None
    if _ROLLOUT.fullmatch(request.what):
        if request.selector is not None:
            raise FleetError(
                "a rollout has its own devices: all of them go back",
                found_in=f"{request.what} {request.selector.as_options()}",
                remedy="name the release instead, as NAME@VERSION",
            )
        ended = execution.find(session, request.what)
        release = session.get_one(ReleaseRow, ended.digest)
        rows = committed_candidates(session, ended.number, Asked(release.name, keys))
    else:
        release = find_release(session, request.what)
        selector = request.selector or Selector(kind="all")
        rows = select_candidates(session, selector, Asked(release.name, keys))
    going, staying = _divide(session, release, rows, ended, is_released)
    return Plan(release, ended, going, staying)


def _divide(
    session: Session,
    release: ReleaseRow,
    rows: Iterable[Candidate],
    ended: RolloutRow | None,
    is_released: IsReleased,
) -> tuple[dict[str, list[Candidate]], dict[Obstacle, list[Candidate]]]:
    """Return devices by target release, and by obstacle."""
    # A rollout that is not over would bring this release again.
    bringing = {
        device: rollout
        for device, rollout in open_rollouts(session, release.name, states=counting.LIVE).items()
        if rollout.digest == release.digest
    }
    others = bringing | open_rollouts(session, release.name)
    going: dict[str, list[Candidate]] = defaultdict(list)
    staying: dict[Obstacle, list[Candidate]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: natural_order(row.id)):
        runs, kept = row.runs, row.kept
        is_running_it = runs is not None and runs.digest == release.digest
        if not is_running_it and ended is None:
            continue
        other = others.get(row.id)
        if runs is not None and not is_running_it:
            obstacle = Obstacle(f"{title(runs)} serves there by now")
        elif other is not None and other is not ended:
            name = name_of(other.number)
            because, remedy = (
                f"in rollout {name}, which is {other.state}",
                "edgepack rollout rollback",
            )
            obstacle = Obstacle(because, remedy=f"{remedy} {name}")
        elif kept is None:
            obstacle = Obstacle("it keeps no release to go back to")
        elif not _is_held(session, kept):
            obstacle = Obstacle(f"the fleet does not hold {full_title(kept)}, which it ran before")
        elif not is_released(kept):
            because = f"{full_title(kept)}, which it ran before, was withdrawn"
            obstacle = Obstacle(because, is_withdrawn=True)
        else:
            going[kept.digest].append(row)
            continue
        staying[obstacle].append(row)
    return going, staying


def _is_held(session: Session, bundle: BundleRef) -> bool:
    row = session.get(ReleaseRow, bundle.digest)
    return row is not None and row.deleted_at is None


def _recall(
    session: Session, release: ReleaseRow, rows: Sequence[Candidate], because: str, now: float
) -> None:
    """Note in the earlier rollouts of these devices that the release is taken back."""
    gone = {row.id for row in rows}
    query = select(RolloutRow.number).where(RolloutRow.digest == release.digest)
    committed = assignments.of_release(session, session.scalars(query).all(), "COMMITTED")
    recalled = [
        StateChange(assignment, "RECALLED", because, now)
        for assignment in committed
        if assignment.device in gone
    ]
    assignments.record(session, recalled)


def _end_empty(session: Session, release: ReleaseRow, now: float) -> None:
    finished = select(RolloutRow).where(
        RolloutRow.digest == release.digest, RolloutRow.state == "FINISHED"
    )
    for rollout in session.scalars(finished).all():
        if not counting.count(judgement.counts_of(session, rollout), {"COMMITTED"}):
            execution.abort(session, rollout, because="taken back", now=now)


def _refusal(plan: Plan) -> str:
    """Return why no device can roll back; a rollout without commits can still be ended."""
    if plan.going or (plan.ended and plan.ended.state != "ABORTED" and not plan.staying):
        return ""
    reason = next(iter(plan.staying), NOBODY).because
    return f"no device can go back from {full_title(plan.release.bundle)}: {reason}"


def _name_if(rollout: RolloutRow | None, states: Collection[str]) -> str:
    return name_of(rollout.number) if rollout is not None and rollout.state in states else ""


def _part(
    rows: Sequence[Candidate],
    *,
    to: BundleRef | None = None,
    wave_count: int = 0,
    because: str = "",
) -> RollbackPart:
    return RollbackPart(
        to=to,
        devices=len(rows),
        wave_count=wave_count,
        examples=tuple(row.id for row in rows[:MAX_EXAMPLES]),
        because=because,
    )
