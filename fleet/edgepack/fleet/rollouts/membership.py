"""Membership of devices in rollouts: at the start, and later.

Every function works inside the caller's transaction and returns messages to publish after the
commit.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.bundle.manifest import Manifest
from edgepack.fleet.database import assignments
from edgepack.fleet.database.assignments import WaveSlot
from edgepack.fleet.database.candidates import Asked, Candidate, select_candidates
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.inventory import read_where
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.database.where import Attributes, attributes, parse_where
from edgepack.fleet.documents.audit import Action
from edgepack.fleet.documents.previews import RolloutPreview
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from edgepack.fleet.releases.publish import check_identity
from edgepack.fleet.rollouts import judgement
from edgepack.fleet.rollouts.execution import Numbers, change, note_act, record_change
from edgepack.fleet.rollouts.offers import name_of, offer
from edgepack.fleet.rollouts.preview import open_rollouts, preview
from edgepack.fleet.rollouts.settings import check_settings
from edgepack.fleet.rollouts.waves import SITE, WaveStep, divide, keys_of, parse_waves
from edgepack.fleet.rollouts.windows import zone_of
from edgepack.wire.orders import BundleRef

MAX_CLASSES = 64
"""Hardware classes of a rollout that are counted by name."""
UNKNOWN_CLASS, OTHER_CLASSES = "not reported yet", "other"
ZONE = "timezone"
"""The label that names a device's time zone."""


class Begun(NamedTuple):
    """New rollout, and the devices that have no assignment yet."""

    rollout: RolloutRow
    left: Iterator[tuple[str, WaveSlot]]


def show_preview(
    session: Session,
    bundle: BundleRef,
    selector: Selector,
    settings: RolloutSettings,
    manifest: Manifest | None = None,
) -> RolloutPreview:
    """Return the preview of a rollout that would start now.

    Raises:
        FleetError: A number makes no sense, no device is selected, or the fleet holds another
            content under the bundle's name and version or release counter.
    """
    steps = parse_waves(settings.waves)
    check_settings(settings)
    check_identity(session, bundle)
    check_keys(session, steps)
    adapter = manifest.facts.adapter if manifest is not None else None
    asked = Asked(
        bundle.name,
        keys_of(steps),
        with_facts=manifest is not None,
        base=adapter.base if adapter is not None else "",
    )
    rows = select_candidates(session, selector, asked)
    return preview(session, bundle, rows, selector, settings, manifest)


def check_keys(session: Session, steps: Sequence[WaveStep]) -> None:
    """Reject waves with keys that no device has.

    Raises:
        FleetError: A wave uses an unknown key.
    """
    for step in steps:
        if step.where:
            read_where(session, step.where)


def begin(
    session: Session,
    release: ReleaseRow,
    rows: Sequence[Candidate],
    *,
    selector: Selector,
    settings: RolloutSettings,
    takes_back: ReleaseRow | None = None,
    at_once: int | None = None,
    now: float,
) -> Begun:
    """Make a rollout for suitable devices, and put the devices into waves.

    Args:
        rows: With the attributes that `waves.keys_of` and `seat_keys` name.
        at_once: Number of devices to add now; a rollout with more devices is PREPARING. None adds
            all.
    """
    rollout = RolloutRow(
        digest=release.digest,
        selector=selector,
        settings=_plan(settings, has_control=takes_back is None),
        wave_count=0,
        state="RUNNING" if at_once is None or len(rows) <= at_once else "PREPARING",
        because=f"started for {selector}",
        started_at=now,
        changed_at=now,
        takes_back=takes_back.digest if takes_back else "",
    )
    session.add(rollout)
    session.flush()
    steps = parse_waves(settings.waves)
    waves = divide(rows, steps, name_of(rollout.number), rollout.settings.control)
    rollout.wave_count = max(waves.values()) + 1
    class_of = classify(rows)
    if settings.window:
        zones = {_only(row.attributes, ZONE) for row in rows}
        for zone in zones:
            zone_of(zone)  # which refuses one that is none
        rollout.zones = tuple(sorted(zones))
    session.flush()
    slots = (
        (row.id, wave_slot(row.attributes, rollout, waves[row.id], class_of(row.hardware_class)))
        for row in rows
    )
    assignments.add(session, rollout.number, islice(slots, at_once))
    record_change(session, rollout, "", rollout.because, now)
    plan = msgspec.to_builtins(rollout.settings)
    thresholds = {f"gate {name}": value for name, value in plan.pop("gates").items()}
    numbers: Numbers = {"devices": len(rows), **plan, **thresholds}
    action: Action = "rollout.rollback" if takes_back else "rollout.start"
    note_act(session, rollout, action, rollout.because, numbers, now)
    return Begun(rollout, slots)


def seat_keys(settings: RolloutSettings) -> frozenset[str]:
    """Return the label keys of devices that a rollout uses: the keys for `wave_slot`."""
    heeded = {SITE: settings.max_per_site, ZONE: settings.window}
    return frozenset(key for key, is_heeded in heeded.items() if is_heeded)


def wave_slot(found: Attributes, rollout: RolloutRow, wave: int, hardware_class: str) -> WaveSlot:
    """Return the place in a rollout of a device with these attributes."""
    site = _only(found, SITE) if rollout.settings.max_per_site else ""
    return WaveSlot(
        wave, hardware_class, site, _only(found, ZONE) if rollout.settings.window else ""
    )


def _only(found: Attributes, label: str) -> str:
    return next(iter(found.get(label, ())), "")


def classify(rows: Sequence[Candidate]) -> Callable[[str], str]:
    """Return the hardware class for counts of each device: the most frequent classes by name."""
    named = Counter(row.hardware_class or UNKNOWN_CLASS for row in rows)
    kept = {name for name, _ in named.most_common(MAX_CLASSES)}

    def class_of(name: str) -> str:
        name = name or UNKNOWN_CLASS
        return name if name in kept else OTHER_CLASSES

    return class_of


def _plan(settings: RolloutSettings, *, has_control: bool) -> RolloutSettings:
    """Return only the plan's settings of a request; a rollback holds no device back."""
    names = RolloutSettings.__struct_fields__
    plan = RolloutSettings(**{name: getattr(settings, name) for name in names})
    return plan if has_control else msgspec.structs.replace(plan, control="")


def join(session: Session, device: DeviceRow, now: float) -> tuple[Publication, ...]:
    """Give a new device the release of the newest rollout of each model to its group."""
    query = (
        select(RolloutRow, ReleaseRow.name)
        .join(ReleaseRow, RolloutRow.digest == ReleaseRow.digest)
        .where(RolloutRow.state != "ABORTED", ReleaseRow.deleted_at.is_(None))
        .order_by(RolloutRow.number.desc())
    )
    newest: dict[str, RolloutRow] = {}
    for rollout, name in session.execute(query):
        if name not in newest and _is_for(rollout.selector, device):
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
        if own_class in rollout.held:
            continue
        own = wave_slot(attributes(device), rollout, rollout.wave_count - 1, own_class)
        zones = {*rollout.zones, own.zone}
        rollout.zones = tuple(sorted(zones))
        assignments.add(session, rollout.number, [(device.id, own)])
        if rollout.state == "FINISHED" and (rollout.settings.window or own.site):
            change(session, rollout, "retry", f"{device.id} joined, and waits for its turn", now)
        elif rollout.state == "FINISHED":
            waiting = assignments.of_devices(session, (device.id,), ("WAITING",))
            offered = [assignment for assignment in waiting if assignment.rollout == rollout.number]
            publications += offer(session, rollout, offered, now)
    return tuple(publications)


def _is_for(selector: Selector, device: DeviceRow) -> bool:
    match selector.kind:
        case "group":
            return selector.group == device.group
        case "where":
            return parse_where(selector.where).matches(attributes(device))
    return selector.kind == "all"
