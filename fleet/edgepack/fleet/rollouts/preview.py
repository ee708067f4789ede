"""Preview of a rollout for each of its devices; changes nothing.

A variant fits a device by the device's own matching, applied to the last report. Settings known
only to the device (disabled providers, degraded variants) are ignored here.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.matching import match_variants
from edgepack.bundle.manifest import Manifest, Variant
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import FleetError
from edgepack.fleet.database import devices
from edgepack.fleet.database.candidates import Candidate
from edgepack.fleet.database.schema import AssignmentRow, ReleaseRow, RolloutRow
from edgepack.fleet.documents.devices import SIMULATED
from edgepack.fleet.documents.previews import OUTCOMES, Outcome, PreviewPart, RolloutPreview
from edgepack.fleet.documents.releases import full_title
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from edgepack.fleet.rollouts.counting import UNDECIDED
from edgepack.fleet.rollouts.offers import name_of
from edgepack.fleet.rollouts.power import expect
from edgepack.fleet.rollouts.rules import OPEN
from edgepack.fleet.rollouts.waves import divide, parse_waves
from edgepack.text import counted, natural_order
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import DeviceFacts

_ANY_PROVIDER = ProviderConfig(allow_simulator=True)
_ANY_VARIANT = TrustPolicy(keys=(), allow_degraded_unsafe=True)
HARDWARE = "no variant fits their hardware and providers"
RUNTIME = "the release is for other versions of ONNX Runtime"
BASE = "the adapter is for another release of its base"


class Misfit(NamedTuple):
    """Reason why a device will reject a bundle.

    Attributes:
        because: `HARDWARE`, `RUNTIME` or `BASE`.
        detail: The problem of each variant there.
    """

    because: str
    detail: str


def find_misfit(manifest: Manifest, facts: DeviceFacts) -> Misfit | None:
    """Return why no variant of a bundle fits a device; None if a variant fits, or nothing can run
    there.

    Args:
        manifest: The bundle's manifest.
        facts: The device's reported facts.
    """
    if facts.agent_version == SIMULATED:
        return None
    found = match_variants(manifest, facts, _ANY_PROVIDER, _ANY_VARIANT)
    if found.candidates:
        return None
    lenient = replace(manifest, variants=tuple(map(_for_any_runtime, manifest.variants)))
    otherwise = match_variants(lenient, facts, _ANY_PROVIDER, _ANY_VARIANT).candidates
    because, names = (RUNTIME, [one.name for one in otherwise]) if otherwise else (HARDWARE, None)
    reasons = [f"{name}: {found.rejected[name]}" for name in names or found.rejected]
    return Misfit(because, "; ".join(reasons))


def find_other_base(manifest: Manifest, base: BundleRef | None) -> Misfit | None:
    """Return why an adapter does not fit the base of a device; None if the base fits, or for a
    model that runs by itself.

    Args:
        manifest: The bundle's manifest.
        base: The serving release of the base there; None if nothing serves.
    """
    adapter = manifest.facts.adapter
    if adapter is None or (base is not None and base.digest == adapter.base_digest):
        return None
    runs = f"{full_title(base)} serves" if base is not None else f"no {adapter.base} serves"
    return Misfit(BASE, f"it is for {adapter.words}, and {runs}")


def _for_any_runtime(variant: Variant) -> Variant:
    requires = replace(variant.facts.requires, runtime="")
    return replace(variant, facts=replace(variant.facts, requires=requires))


IN_ROLLOUT = frozenset({"WAITING", *UNDECIDED})
"""States of a device's part while the rollout may still change what the device runs."""
MAX_EXAMPLES = 3
MAX_DETAIL = 300


class Verdict(NamedTuple):
    """Effect of a rollout on a device; see `PreviewPart`.

    Attributes:
        remedy: Remedy for a rejection.
        detail: Problem of this device; other devices with the same verdict may have another
            problem.
    """

    outcome: Outcome
    because: str = ""
    runs: BundleRef | None = None
    remedy: str = ""
    detail: str = ""


Verdicts = Mapping[Verdict, Sequence[str]]
"""Devices by what a rollout means to them, `detail` aside; those that are refused come last."""


def preview(
    session: Session,
    bundle: BundleRef,
    rows: Sequence[Candidate],
    selector: Selector,
    settings: RolloutSettings,
    manifest: Manifest | None = None,
) -> RolloutPreview:
    """Return the preview of a bundle for these devices.

    Args:
        session: The transaction.
        bundle: The bundle; the fleet need not hold the bundle yet.
        rows: The devices.
        selector: Selection of the devices.
        settings: Settings of the rollout.
        manifest: Its manifest, to check for suitable variants; None skips the check.
    """
    supersede = settings.supersede
    verdicts, details = judge(session, bundle, rows, selector, manifest, supersede=supersede)
    divided = divide(rows, parse_waves(settings.waves), "", settings.control)
    waves = Counter(divided.values())
    counts: Counter[str] = Counter()
    for verdict, names in verdicts.items():
        counts[verdict.outcome] += len(names)
    refusal, remedy = _refusal(bundle, verdicts)
    return RolloutPreview(
        bundle=bundle,
        selector=str(selector),
        waves=tuple(waves[index] for index in sorted(waves)),
        parts=tuple(_part(verdict, names, details) for verdict, names in verdicts.items()),
        counts=dict(counts),
        refusal=refusal,
        remedy=remedy,
        note=_note(session, rows, selector),
        finds=expect(session, bundle, rows, divided, settings),
    )


def _refusal(bundle: BundleRef, verdicts: Verdicts) -> tuple[str, str]:
    """Return why a rollout cannot start for all of its devices, with the remedy."""
    for verdict, names in verdicts.items():
        if verdict.outcome == "refused":
            total = sum(map(len, verdicts.values()))
            of_all = f"{len(names)} of {counted(total, 'device')}"
            told = f"{of_all} cannot take {full_title(bundle)}: {verdict.because}"
            return told, verdict.remedy
    return "", ""


def _note(session: Session, rows: Sequence[Candidate], selector: Selector) -> str:
    """Return a warning about a possibly unintended selection."""
    enrolled, _ = devices.count_devices(session)
    if selector.kind == "all" or len(rows) < max(enrolled, 2):
        return ""
    return f"these are all {enrolled} devices of the fleet"


def _part(verdict: Verdict, names: Sequence[str], details: Mapping[str, str]) -> PreviewPart:
    examples = _examples(names)
    detail = details.get(examples[0], "")
    example = f" ({examples[0]}: {detail[:MAX_DETAIL]})" if detail else ""
    return PreviewPart(
        outcome=verdict.outcome,
        devices=len(names),
        examples=examples,
        because=verdict.because + example,
        runs=verdict.runs,
    )


def _examples(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(heapq.nsmallest(MAX_EXAMPLES, names, key=natural_order))


def refuse(bundle: BundleRef, verdicts: Verdicts) -> None:
    """Reject a rollout that cannot be started for all of its devices.

    Raises:
        FleetError: The rollout cannot start.
    """
    refusal, remedy = _refusal(bundle, verdicts)
    if refusal:
        names = next(names for verdict, names in verdicts.items() if verdict.outcome == "refused")
        more = ", …" if len(names) > MAX_EXAMPLES else ""
        raise FleetError(
            refusal, found_in=f"devices {', '.join(_examples(names))}{more}", remedy=remedy
        )


def judge(
    session: Session,
    bundle: BundleRef,
    rows: Sequence[Candidate],
    selector: Selector,
    manifest: Manifest | None = None,
    *,
    supersede: bool = False,
) -> tuple[dict[Verdict, list[str]], dict[str, str]]:
    """Return the effect of a bundle on each device.

    1. A device is in a single rollout of a model at a time until its result is decided, unless the
       new rollout takes the device over.
    2. A device that serves the release already has nothing to do.
    3. A device never goes below its committed release counter, except in a rollback.
    4. A device without a suitable variant, or with another base of an adapter, will reject the
       release.
    5. Otherwise the bundle replaces the serving release, or adds a model.

    Returns:
        `Verdicts`, and the problem of each device without a suitable variant.
    """
    taken = {} if supersede else open_rollouts(session, bundle.name)
    newer = _newer_committed(session, bundle)
    found: dict[Verdict, list[str]] = defaultdict(list)
    details: dict[str, str] = {}
    misfits: dict[int, Misfit | None] = {}  # devices of a kind have the same facts, read once
    for row in rows:
        if manifest is not None and row.facts is not None and id(row.facts) not in misfits:
            misfits[id(row.facts)] = find_misfit(manifest, row.facts)
        misfit = misfits.get(id(row.facts))
        if manifest is not None and row.facts is not None:
            misfit = misfit or find_other_base(manifest, row.base)
        verdict = _judge_one(
            *(bundle, row.runs, taken.get(row.id), newer.get(row.id), selector), misfit
        )
        if verdict.detail:
            details[row.id] = verdict.detail
            verdict = verdict._replace(detail="")
        found[verdict].append(row.id)
    order = sorted(found, key=lambda verdict: OUTCOMES.index(verdict.outcome))
    return {verdict: found[verdict] for verdict in order}, details


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


def open_rollouts(
    session: Session,
    name: str,
    device: str = "",
    *,
    states: Collection[str] = IN_ROLLOUT,
    but: int = 0,
) -> dict[str, RolloutRow]:
    """Return devices that are in an unfinished rollout of a model, each with that rollout.

    Args:
        session: The transaction.
        name: The model.
        device: Only this device; "" means all.
        states: States of a device's part that count. By default a decided device is not in a
            rollout, however long the rollout waits for other devices.
        but: Number of a rollout to ignore.
    """
    of_model = (
        select(RolloutRow)
        .join(ReleaseRow, RolloutRow.digest == ReleaseRow.digest)
        .where(RolloutRow.state.in_(OPEN), ReleaseRow.name == name, RolloutRow.number != but)
    )
    rollouts = {rollout.number: rollout for rollout in session.scalars(of_model)}
    query = select(AssignmentRow.device, AssignmentRow.rollout).where(
        AssignmentRow.rollout.in_(rollouts), AssignmentRow.state.in_(states)
    )
    if device:
        query = query.where(AssignmentRow.device == device)
    found = session.execute(query.order_by(AssignmentRow.rollout)) if rollouts else ()
    return {device: rollouts[number] for device, number in found}


def _newer_committed(session: Session, bundle: BundleRef) -> dict[str, BundleRef]:
    """Return the highest release above the bundle's that each device ever committed for this
    fleet.
    """
    newer = select(ReleaseRow).where(
        ReleaseRow.name == bundle.name, ReleaseRow.release > bundle.release
    )
    bundles = {row.digest: row.bundle for row in session.scalars(newer)}
    query = (
        select(AssignmentRow.device, RolloutRow.digest)
        .join(RolloutRow, AssignmentRow.rollout == RolloutRow.number)
        .join(ReleaseRow, RolloutRow.digest == ReleaseRow.digest)
        .where(AssignmentRow.state.in_(("COMMITTED", "RECALLED")), RolloutRow.digest.in_(bundles))
        .order_by(ReleaseRow.release)
    )
    return {device: bundles[digest] for device, digest in session.execute(query)} if bundles else {}
