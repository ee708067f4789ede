"""Which devices a rollout has: those selected when it is started, and those that join later.

Every function works inside the caller's transaction and returns what is to be published once
that is durable.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.bundle.manifest import Manifest
from edgepack.errors import FleetError
from edgepack.fleet.database import assignments, devices
from edgepack.fleet.database.assignments import Seat
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.inventory import find_where, read_where
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.database.where import attributes, labels, parse_where
from edgepack.fleet.documents.audit import Action
from edgepack.fleet.documents.gates import BY_NAME
from edgepack.fleet.documents.previews import RolloutPreview
from edgepack.fleet.documents.rollouts import RolloutRequest, RolloutSettings, Selector
from edgepack.fleet.releases.publish import check_identity
from edgepack.fleet.rollouts import judgement
from edgepack.fleet.rollouts.execution import Numbers, change, note_act, record_change
from edgepack.fleet.rollouts.offers import name_of, offer
from edgepack.fleet.rollouts.preview import open_rollouts, preview, refuse
from edgepack.fleet.rollouts.supersede import take_over
from edgepack.fleet.rollouts.waves import SITE, WaveStep, divide, parse_waves
from edgepack.fleet.rollouts.windows import parse_window, zone_of
from edgepack.wire.messages import MAX_SOAK_S, BundleRef

MAX_CLASSES = 64
"""Hardware classes of a rollout that are counted by name."""
UNKNOWN_CLASS, OTHER_CLASSES = "not reported yet", "other"
MAX_SAMPLE = 1_000_000
DAY_S = 24 * 3600.0
MAX_DEADLINE_S = 366 * DAY_S
MAX_INFERENCES = 1_000_000_000
MAX_THRESHOLD = 1_000_000
MAX_MOMENT = 2.0**33
ZONE = "timezone"
"""The label that names a device's time zone."""


def show_preview(
    session: Session,
    bundle: BundleRef,
    selector: Selector,
    settings: RolloutSettings,
    manifest: Manifest | None = None,
) -> RolloutPreview:
    """What a rollout would mean if it were started now.

    Raises:
        FleetError: A number makes no sense, no device is selected, or the fleet holds another
            content under the bundle's name and version or release counter.
    """
    steps = parse_waves(settings.waves)
    check_numbers(settings)
    check_identity(session, bundle)
    _check_keys(session, steps)
    rows = select_devices(session, selector)
    return preview(session, bundle, rows, selector, steps, manifest, supersede=settings.supersede)


def start(session: Session, request: RolloutRequest, now: float) -> RolloutRow:
    """Makes a rollout and puts its devices into waves; the first one begins with the next step.

    Raises:
        FleetError: The release is unknown, a number makes no sense, no device is selected, or
            one of them cannot take the release (see `preview.judge`).
    """
    steps = parse_waves(request.waves)
    check_numbers(request)
    release = session.get(ReleaseRow, request.digest)
    if release is None or release.deleted_at is not None:
        raise FleetError(
            f"no release has digest {request.digest}",
            remedy="edgepack rollout start BUNDLE uploads it",
        )
    rows = select_devices(session, request.selector)
    _check_keys(session, steps)
    found = preview(
        session, release.bundle, rows, request.selector, steps, supersede=request.supersede
    )
    refuse(found)
    older = open_rollouts(session, release.name)
    rollout = begin(session, release, rows, selector=request.selector, settings=request, now=now)
    if request.supersede:
        take_over(session, rollout, {row.id: older[row.id] for row in rows if row.id in older}, now)
    return rollout


def _check_keys(session: Session, steps: Sequence[WaveStep]) -> None:
    """Refuses waves that speak of what no device has."""
    for step in steps:
        if step.where:
            read_where(session, step.where)


def begin(
    session: Session,
    release: ReleaseRow,
    rows: Sequence[DeviceRow],
    *,
    selector: Selector,
    settings: RolloutSettings,
    takes_back: ReleaseRow | None = None,
    now: float,
) -> RolloutRow:
    """Makes a rollout for devices that can take it, and puts them into waves."""
    rollout = RolloutRow(
        digest=release.digest,
        selector=msgspec.json.encode(selector).decode(),
        waves=settings.waves,
        wave_count=0,
        soak_s=settings.soak_s,
        min_inferences=settings.min_inferences,
        deadline_s=settings.deadline_s,
        max_failed_share=settings.max_failed_share,
        min_sample=settings.min_sample,
        on_breach=settings.on_breach,
        gates=msgspec.json.encode(settings.gates).decode(),
        split_by=settings.split_by,
        evidence_s=settings.evidence_s,
        max_per_site=settings.max_per_site,
        approves=settings.approve_waves,
        not_before=settings.not_before,
        window=settings.window,
        state="RUNNING",
        because=f"started for {selector}",
        started_at=now,
        changed_at=now,
        takes_back=takes_back.digest if takes_back else "",
    )
    session.add(rollout)
    session.flush()
    waves = divide(rows, parse_waves(settings.waves), name_of(rollout.number))
    rollout.wave_count = max(waves.values()) + 1
    classes = classify(rows)
    seats = {row.id: seat(row, rollout, waves[row.id], classes[row.id]) for row in rows}
    zones = {one.zone for one in seats.values()} if settings.window else set()
    for zone in zones:
        zone_of(zone)  # which refuses one that is none
    rollout.zones = msgspec.json.encode(sorted(zones)).decode()
    session.flush()
    assignments.add(session, rollout.number, seats)
    record_change(session, rollout, "", rollout.because, now)
    plan = msgspec.to_builtins(_plan(settings))
    thresholds = {f"gate {name}": value for name, value in plan.pop("gates").items()}
    numbers: Numbers = {"devices": len(rows), **plan, **thresholds}
    action: Action = "rollout.rollback" if takes_back else "rollout.start"
    note_act(session, rollout, action, rollout.because, numbers, now)
    return rollout


def seat(row: DeviceRow, rollout: RolloutRow, wave: int, hardware_class: str) -> Seat:
    """Where a device's part in a rollout is."""
    called = labels(row) if rollout.max_per_site or rollout.window else {}
    site = called.get(SITE, "") if rollout.max_per_site else ""
    return Seat(wave, hardware_class, site, called.get(ZONE, "") if rollout.window else "")


def classify(rows: Sequence[DeviceRow]) -> dict[str, str]:
    """Under which hardware class each device is counted, by id: the most frequent ones by name."""
    named = Counter(row.hardware_class or UNKNOWN_CLASS for row in rows)
    kept = {name for name, _ in named.most_common(MAX_CLASSES)}
    names = ((row.id, row.hardware_class or UNKNOWN_CLASS) for row in rows)
    return {device: name if name in kept else OTHER_CLASSES for device, name in names}


def _plan(settings: RolloutSettings) -> RolloutSettings:
    """What a request says of how to go about it, without what it says of anything else."""
    names = RolloutSettings.__struct_fields__
    return RolloutSettings(**{name: getattr(settings, name) for name in names})


def check_numbers(request: RolloutSettings) -> None:
    """Refuses settings that make no sense.

    Raises:
        FleetError: They do not.
    """
    problem = remedy = ""
    if not 0 <= request.max_failed_share <= 1:
        problem, remedy = "the greatest share of failures is 0% to 100%", "--max-failures 10%"
    elif not 1 <= request.min_sample <= MAX_SAMPLE:
        problem = f"a sample has 1 to {MAX_SAMPLE:,} devices"
        remedy = "--min-sample 5"
    elif not 0 <= request.soak_s <= MAX_SOAK_S:
        problem = f"a soak takes 0 to {MAX_SOAK_S:,.0f} seconds ({MAX_SOAK_S / DAY_S:g} days)"
        remedy = "--soak 60"
    elif request.deadline_s > MAX_DEADLINE_S:
        problem = f"a deadline is at most {MAX_DEADLINE_S:,.0f} seconds off"
        remedy = f"--deadline {MAX_DEADLINE_S:.0f}"
    elif not 0 <= request.min_inferences <= MAX_INFERENCES:
        problem = f"a soak can ask for 0 to {MAX_INFERENCES:,} inferences"
        remedy = "--min-inferences 100"
    elif request.deadline_s <= request.soak_s:
        problem = f"no device can soak {request.soak_s:g} s within {request.deadline_s:g} s"
        remedy = f"--deadline {request.soak_s * 2 + 600:g}"
    elif not 0 <= request.evidence_s <= MAX_DEADLINE_S:
        problem = f"measurements are waited for 0 to {MAX_DEADLINE_S:,.0f} seconds"
        remedy = "--evidence-wait 60"
    elif not 0 <= request.max_per_site <= MAX_SAMPLE:
        problem = f"at a site 1 to {MAX_SAMPLE:,} devices may be at it at once; 0 sets no bound"
        remedy = "--max-per-site 2"
    elif request.not_before is not None and not 0 <= request.not_before <= MAX_MOMENT:
        problem, remedy = "that is no time to start at", "--not-before 2030-01-31T02:00"
    if request.window:
        parse_window(request.window)
    for name, threshold in request.gates.items():
        gate = BY_NAME.get(name)
        if gate is None:
            problem, remedy = f"there is no gate {name[:40]!r}", "one of " + ", ".join(BY_NAME)
        elif threshold is not None and not 0 <= threshold <= MAX_THRESHOLD:
            problem = f"gate {name} cannot let {threshold:g} pass"
            remedy = f"--gate {name}={gate.threshold:g}"
        elif threshold is not None and gate.comparison == "ratio" and threshold < 1:
            problem = f"gate {name} is a ratio to the release before: 1 is as it was"
            remedy = f"--gate {name}={gate.threshold:g}"
    if problem:
        raise FleetError(problem, remedy=remedy)


def select_devices(session: Session, selector: Selector) -> Sequence[DeviceRow]:
    """The devices that a selector means now.

    Raises:
        FleetError: There are none, or one that is named is not enrolled.
    """
    if selector.kind == "devices":
        return devices.find_devices(session, tuple(dict.fromkeys(selector.devices)))
    if selector.kind == "where":
        rows = find_where(session, selector.where)
    else:
        query = select(DeviceRow)
        if selector.kind == "group":
            query = query.where(DeviceRow.group == selector.group)
        rows = session.scalars(query).all()
    if not rows:
        groups = session.scalars(select(DeviceRow.group).distinct().order_by(DeviceRow.group))
        raise FleetError(
            {
                "all": "no device is enrolled",
                "group": f"no device is enrolled in {selector}",
            }.get(selector.kind, f"there are no {selector}"),
            found_in=f"groups: {', '.join(groups) or 'none'}",
            remedy="edgepack fleet enroll cam-7 --group cameras -o cam-7/",
        )
    return rows


def join(session: Session, device: DeviceRow, now: float) -> tuple[Publication, ...]:
    """Gives a device that has just joined what the newest rollout of each model gave its group."""
    query = (
        select(RolloutRow, ReleaseRow.name)
        .join(ReleaseRow, RolloutRow.digest == ReleaseRow.digest)
        .where(RolloutRow.state != "ABORTED", ReleaseRow.deleted_at.is_(None))
        .order_by(RolloutRow.number.desc())
    )
    newest: dict[str, RolloutRow] = {}
    for rollout, name in session.execute(query):
        if name not in newest and _is_for(
            msgspec.json.decode(rollout.selector, type=Selector), device
        ):
            newest[name] = rollout
    publications: list[Publication] = []
    for name, rollout in newest.items():
        was_in_it = session.get(AssignmentRow, (rollout.number, device.id)) is not None
        if was_in_it or open_rollouts(session, name, device.id):
            continue
        own_class = device.hardware_class or UNKNOWN_CLASS
        classes = judgement.classes_of(session, rollout)
        if own_class not in classes and len(classes) >= MAX_CLASSES:
            own_class = OTHER_CLASSES
        if own_class in msgspec.json.decode(rollout.held, type=dict[str, str]):
            continue
        own = seat(device, rollout, rollout.wave_count - 1, own_class)
        zones = set(msgspec.json.decode(rollout.zones, type=list[str])) | {own.zone}
        rollout.zones = msgspec.json.encode(sorted(zones)).decode()
        assignments.add(session, rollout.number, {device.id: own})
        if rollout.state == "FINISHED" and (rollout.window or own.site):
            change(session, rollout, "retry", f"{device.id} joined, and waits for its turn", now)
        elif rollout.state == "FINISHED":
            waiting = assignments.of_devices(session, (device.id,), ("WAITING",))
            parts = [part for part in waiting if part.rollout == rollout.number]
            publications += offer(session, rollout, parts, now)
    return tuple(publications)


def _is_for(selector: Selector, device: DeviceRow) -> bool:
    match selector.kind:
        case "group":
            return selector.group == device.group
        case "where":
            return parse_where(selector.where).matches(attributes(device))
    return selector.kind == "all"
