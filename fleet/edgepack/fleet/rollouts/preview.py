"""What a rollout means to each of its devices, before it is started; nothing is changed here."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.bundle.manifest import Manifest
from edgepack.errors import FleetError
from edgepack.fleet.database import devices
from edgepack.fleet.database.schema import AssignmentRow, DeviceRow, ReleaseRow, RolloutRow
from edgepack.fleet.documents.previews import OUTCOMES, Outcome, PreviewPart, RolloutPreview
from edgepack.fleet.documents.releases import full_title
from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.rollouts.fit import Misfit, find_misfit
from edgepack.fleet.rollouts.offers import name_of
from edgepack.fleet.rollouts.waves import WaveStep, divide
from edgepack.text import counted, natural_order
from edgepack.wire.messages import BundleRef

MAX_EXAMPLES = 3
MAX_DETAIL = 300


class Verdict(NamedTuple):
    """What a rollout means to one device; see `PreviewPart`.

    Attributes:
        remedy: What to do instead where it is refused.
        detail: What is wrong with this device; others to which it means the same may have another.
    """

    outcome: Outcome
    because: str = ""
    runs: BundleRef | None = None
    remedy: str = ""
    detail: str = ""


def preview(
    session: Session,
    bundle: BundleRef,
    rows: Sequence[DeviceRow],
    selector: Selector,
    steps: Sequence[WaveStep],
    manifest: Manifest | None = None,
    *,
    supersede: bool = False,
) -> RolloutPreview:
    """What rolling a bundle out to devices would mean now.

    Args:
        session: The transaction.
        bundle: The bundle; the fleet need not hold it yet.
        rows: The devices.
        selector: How they were named.
        steps: The waves.
        manifest: Its manifest, to see which devices it has a variant for; None does not look.
        supersede: Whether devices are taken over from the rollouts that they are in.
    """
    verdicts = judge(session, bundle, rows, selector, manifest, supersede=supersede)
    by_verdict: dict[Verdict, list[str]] = defaultdict(list)
    for device, verdict in verdicts.items():
        by_verdict[verdict._replace(detail="")].append(device)
    parts = sorted(by_verdict.items(), key=lambda part: OUTCOMES.index(part[0].outcome))
    counts: Counter[str] = Counter()
    refusal = remedy = ""
    for verdict, names in parts:
        counts[verdict.outcome] += len(names)
        if verdict.outcome == "refused" and not refusal:
            of_all = f"{len(names)} of {counted(len(rows), 'device')}"
            refusal = f"{of_all} cannot take {full_title(bundle)}: {verdict.because}"
            remedy = verdict.remedy
    waves = Counter(divide(rows, steps, "").values())
    return RolloutPreview(
        bundle=bundle,
        selector=str(selector),
        waves=tuple(waves[index] for index in sorted(waves)),
        parts=tuple(_part(verdict, names, verdicts) for verdict, names in parts),
        counts=dict(counts),
        refusal=refusal,
        remedy=remedy,
        note=_note(session, rows, selector),
    )


def _note(session: Session, rows: Sequence[DeviceRow], selector: Selector) -> str:
    """What a person may not have meant."""
    enrolled, _ = devices.count_devices(session)
    if selector.kind == "all" or len(rows) < max(enrolled, 2):
        return ""
    return f"these are all {enrolled} devices of the fleet"


def _part(verdict: Verdict, names: list[str], verdicts: Mapping[str, Verdict]) -> PreviewPart:
    examples = tuple(sorted(names, key=natural_order)[:MAX_EXAMPLES])
    detail = verdicts[examples[0]].detail
    example = f" ({examples[0]}: {detail[:MAX_DETAIL]})" if detail else ""
    return PreviewPart(
        outcome=verdict.outcome,
        devices=len(names),
        examples=examples,
        because=verdict.because + example,
        runs=verdict.runs,
    )


def refuse(found: RolloutPreview) -> None:
    """Refuses a rollout that cannot be started for all of its devices.

    Raises:
        FleetError: It cannot.
    """
    if found.refusal:
        part = next(part for part in found.parts if part.outcome == "refused")
        more = ", …" if part.devices > len(part.examples) else ""
        raise FleetError(
            found.refusal,
            found_in=f"devices {', '.join(part.examples)}{more}",
            remedy=found.remedy,
        )


def judge(
    session: Session,
    bundle: BundleRef,
    rows: Sequence[DeviceRow],
    selector: Selector,
    manifest: Manifest | None = None,
    *,
    supersede: bool = False,
) -> dict[str, Verdict]:
    """What a bundle means to each device, by id.

    1. A device is in one rollout of a model at a time, unless it is taken over from it.
    2. What serves already is nothing to do.
    3. A device never goes to a lower release counter than it committed, save back.
    4. A device that no variant fits will reject it.
    5. Otherwise the bundle replaces what serves, or comes to what is there.
    """
    taken = open_rollouts(session, bundle.name)
    newer = _newer_committed(session, bundle)
    return {
        row.id: _judge_one(
            bundle,
            devices.running(row, bundle.name),
            None if supersede else taken.get(row.id),
            newer.get(row.id),
            selector,
            _misfit(manifest, row),
        )
        for row in rows
    }


def _judge_one(
    bundle: BundleRef,
    runs: BundleRef | None,
    taken: RolloutRow | None,
    newer: BundleRef | None,
    selector: Selector,
    misfit: Misfit | None,
) -> Verdict:
    # 1.
    if taken is not None:
        name = name_of(taken.number)
        remedy = f"--supersede takes them over; or wait: edgepack rollout watch {name}"
        return Verdict("refused", f"in rollout {name}, which is {taken.state}", runs, remedy)
    # 2.
    if runs is not None and runs.digest == bundle.digest:
        return Verdict("nothing", "it serves there already", runs)
    # 3.
    if runs is not None and runs.release > bundle.release:
        because = f"release {bundle.release} is older than release {runs.release} that serves there"
        way_back = f"edgepack rollout rollback {runs.name}@{runs.version} {selector.as_options()}"
        return Verdict("refused", because, runs, way_back)
    if newer is not None:
        because = (
            f"release {bundle.release} is older than {full_title(newer)}, once committed there"
        )
        number = f"edgepack build --release {newer.release + 1}, or a higher number"
        return Verdict("refused", because, runs, number)
    # 4.
    if misfit is not None:
        return Verdict("unfit", misfit.because, detail=misfit.detail)
    # 5.
    return Verdict("replaces" if runs is not None else "adds", "", runs)


def _misfit(manifest: Manifest | None, row: DeviceRow) -> Misfit | None:
    reported = devices.last_report(row) if manifest is not None else None
    if manifest is None or reported is None or reported.facts is None:
        return None
    return find_misfit(manifest, reported.facts)


def open_rollouts(session: Session, name: str, device: str = "") -> dict[str, RolloutRow]:
    """Devices, or the one, that are in a rollout of a model that is not over, with that rollout."""
    query = (
        select(AssignmentRow.device, RolloutRow)
        .join(RolloutRow, AssignmentRow.rollout == RolloutRow.number)
        .join(ReleaseRow, RolloutRow.digest == ReleaseRow.digest)
        .where(
            RolloutRow.state.in_(("RUNNING", "PAUSED")),
            AssignmentRow.state.not_in(("WITHDRAWN", "RECALLED")),
            ReleaseRow.name == name,
        )
    )
    if device:
        query = query.where(AssignmentRow.device == device)
    rows = session.execute(query.order_by(RolloutRow.number)).all()
    return {name: rollout for name, rollout in rows}  # noqa: C416 (rows are no pairs to mypy)


def _newer_committed(session: Session, bundle: BundleRef) -> dict[str, BundleRef]:
    """The highest release above the bundle's that each device ever committed for this fleet."""
    query = (
        select(AssignmentRow.device, ReleaseRow)
        .join(RolloutRow, AssignmentRow.rollout == RolloutRow.number)
        .join(ReleaseRow, RolloutRow.digest == ReleaseRow.digest)
        .where(
            AssignmentRow.state.in_(("COMMITTED", "RECALLED")),
            ReleaseRow.name == bundle.name,
            ReleaseRow.release > bundle.release,
        )
        .order_by(ReleaseRow.release)
    )
    return {device: release.bundle for device, release in session.execute(query)}
