"""Measurements of a model's variants by devices, for the model's next build."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from edgepack.bundle.feedback import DriftedFeature, Evidence, Feedback
from edgepack.decoding import json_decoder
from edgepack.errors import FleetError
from edgepack.fleet.database.changes import MOST_DEVICES
from edgepack.fleet.database.latency_views import latency_of_release
from edgepack.fleet.database.measures import ReleaseMeasurements
from edgepack.fleet.database.schema import (
    DeviceModelRow,
    DeviceRow,
    LatencySourceRow,
    MeasurementRow,
    ReleaseRow,
)
from edgepack.fleet.documents.devices import SIMULATED
from edgepack.fleet.documents.rollouts import LatencyView
from edgepack.wire.messages import decode
from edgepack.wire.reports import Choice, Drift, FeatureDrift, ProbeResult, Reported

MAX_RELEASES = 20
MAX_KINDS = 2_000
"""Rows of one answer: devices may name variants, providers and hardware as they like."""
BATCH = 500
MAX_TEXT = 200
_FEWEST_DEVICES = 3
Bound = Callable[[Sequence[float]], float]
MAX_FEATURES = 200
"""Features of a kind that are counted: devices may name features as they like."""
MOST_DRIFTED = 5
_MEASUREMENTS = json_decoder(ReleaseMeasurements)


class Kind(NamedTuple):
    """Key of measurements that are counted together."""

    digest: str
    variant: str
    provider: str
    hardware_class: str
    is_simulator: bool


@dataclass
class Seen:
    """Reports of devices of a kind."""

    probed: int = 0
    right: int = 0
    chosen: int = 0
    fallbacks: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    times_ms: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    drifts: list[float] = field(default_factory=list)
    features: dict[str, list[FeatureDrift]] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    shadow_count: int = 0
    shadow_agreed: int = 0
    disagreed: list[float] = field(default_factory=list)
    latency: LatencyView | None = None


def gather(session: Session, model: str, now: float, bound: Bound) -> Feedback:
    """Return the fleet's measurements of a model: golden samples, choices and real inferences.

    Args:
        session: The transaction.
        model: The model's name.
        now: Seconds since the epoch.
        bound: Lower bound of the mean of shares over devices.

    Raises:
        FleetError: The fleet has no release of that name.
    """
    query = select(ReleaseRow).where(ReleaseRow.name == model)
    releases = session.scalars(query.order_by(ReleaseRow.release.desc()).limit(MAX_RELEASES)).all()
    if not releases:
        raise FleetError(
            f"the fleet has no release of {model!r}", remedy="edgepack fleet releases lists them"
        )
    order = {release.digest: place for place, release in enumerate(releases)}
    seen: dict[Kind, Seen] = {}
    serving = select(DeviceRow.hardware_class, DeviceRow.reported).join(
        DeviceModelRow, DeviceModelRow.device == DeviceRow.id
    )
    found = session.execute(
        serving.where(
            DeviceModelRow.name == model,
            DeviceModelRow.digest.in_(order),
            DeviceRow.reported.is_not(None),
        ),
        execution_options={"yield_per": BATCH},
    )
    for hardware_class, text in found:
        _count(seen, hardware_class, decode((text or "").encode(), Reported), model)
    for release in releases:
        for view in latency_of_release(session, release.digest):
            kind = Kind(
                release.digest, view.variant, view.provider, view.hardware_class, view.is_simulator
            )
            if (kept := _of(seen, kind)) is not None:
                kept.latency = view
    _add_measures(session, seen, tuple(order))
    versions = {release.digest: release.version for release in releases}
    kinds = sorted(seen, key=lambda kind: (order[kind.digest], kind[1:]))
    return Feedback(
        model=model,
        at=now,
        evidence=tuple(_evidence(versions[kind.digest], kind, seen[kind], bound) for kind in kinds),
    )


def _add_measures(session: Session, seen: dict[Kind, Seen], digests: Sequence[str]) -> None:
    """Add drift and shadow inferences of all devices that ran the releases, now or before."""
    source, told = LatencySourceRow, MeasurementRow
    query = (
        select(
            source.device,
            source.digest,
            source.variant,
            source.provider,
            source.hardware_class,
            source.is_simulator,
            told.told,
        )
        .join(told, (told.device == source.device) & (told.digest == source.digest))
        .where(source.digest.in_(digests))
        .order_by(source.device, source.digest)
    )
    last: tuple[str, str] | None = None
    for row in session.execute(query, execution_options={"yield_per": BATCH}):
        device, digest, variant, provider, hardware_class, is_simulator, text = row
        kind = Kind(digest, variant, provider, hardware_class, is_simulator)
        # One that ran two variants of a release says not of which it speaks: it counts once.
        is_again, last = (device, digest) == last, (device, digest)
        kept = None if is_again else _of(seen, kind)
        if kept is None:
            continue
        measured = _MEASUREMENTS.decode(text)
        if measured.drift is not None:
            kept.drifts.append(measured.drift)
        count, agreed = measured.shadow
        kept.shadow_count += count
        kept.shadow_agreed += agreed
        share = measured.measures().get("shadow")
        if share is not None:
            kept.disagreed.append(share)


def _of(seen: dict[Kind, Seen], kind: Kind) -> Seen | None:
    """Return the counts of a kind; None if there are too many kinds."""
    if kind not in seen and len(seen) >= MAX_KINDS:
        return None
    return seen.setdefault(kind, Seen())


def _count(seen: dict[Kind, Seen], hardware_class: str, reported: Reported, model: str) -> None:
    said, facts = reported.models.get(model), reported.facts
    if said is None or said.active is None or facts is None:
        return
    choice, digest = said.active.choice, said.active.bundle.digest
    simulated = {provider.name for provider in facts.providers if provider.is_simulator}
    for probe in _probes(choice):
        kind = Kind(
            digest,
            probe.variant[:MAX_TEXT],
            probe.provider[:MAX_TEXT],
            hardware_class,
            facts.agent_version == SIMULATED or probe.provider in simulated,
        )
        kept = _of(seen, kind)
        if kept is None:
            continue
        kept.probed += 1
        kept.right += probe.right
        if not probe.right:
            kept.reasons[probe.because[:MAX_TEXT]] += 1
        if probe.inference_ms is not None and probe.inference_ms >= 0:
            kept.times_ms.append(probe.inference_ms)
        if probe.worst_nrmse is not None:
            kept.errors.append(probe.worst_nrmse)
        if (probe.variant, probe.provider) == (choice.chosen, choice.provider):
            kept.chosen += 1
            kept.fallbacks += choice.is_fallback
            if said.drift is not None:
                _count_drift(kept, said.drift)


def _count_drift(kept: Seen, drift: Drift) -> None:
    for one in drift.features:
        words = one.words[:MAX_TEXT]
        if words in kept.features or len(kept.features) < MAX_FEATURES:
            kept.features.setdefault(words, []).append(one)
    if drift.loss is not None:
        kept.losses.append(drift.loss)


def _drifted(features: dict[str, list[FeatureDrift]]) -> tuple[DriftedFeature, ...]:
    """Return the features that differ on most devices, then by the greatest difference."""
    found = [
        DriftedFeature(
            words=words,
            devices=len(told),
            difference=statistics.median(one.difference for one in told),
            now=statistics.median(one.now for one in told),
            build=statistics.median(one.build for one in told),
            is_change=any(one.is_change for one in told),
        )
        for words, told in features.items()
    ]
    found.sort(key=lambda one: (-one.devices, -one.difference, one.words))
    return tuple(found[:MOST_DRIFTED])


def _probes(choice: Choice) -> tuple[ProbeResult, ...]:
    """Return a device's probes; without probes, the serving variant counts as right."""
    if any(probe.variant == choice.chosen for probe in choice.probes):
        return choice.probes
    serving = ProbeResult(
        variant=choice.chosen, provider=choice.provider, right=True, because=choice.because
    )
    return (*choice.probes, serving)


def _evidence(version: str, kind: Kind, seen: Seen, bound: Bound) -> Evidence:
    shares = seen.disagreed[:MOST_DEVICES]
    told = seen.latency
    measured = told is not None and told.inferences > 0
    return Evidence(
        version=version,
        **kind._asdict(),
        probed=seen.probed,
        right=seen.right,
        wrong_because=seen.reasons.most_common(1)[0][0] if seen.reasons else "",
        chosen=seen.chosen,
        fallbacks=seen.fallbacks,
        probe_ms=statistics.median(seen.times_ms) if seen.times_ms else None,
        worst_nrmse=max(seen.errors, default=None),
        inferences=told.inferences if told else 0,
        failures=told.failures if told else 0,
        p50_ms=told.p50_ms if told and measured else None,
        p95_ms=told.p95_ms if told and measured else None,
        p99_ms=told.p99_ms if told and measured else None,
        drift=statistics.median(seen.drifts) if seen.drifts else None,
        worst_drift=max(seen.drifts, default=None),
        drift_devices=len(seen.drifts),
        drifted=_drifted(seen.features),
        loss=statistics.median(seen.losses) if seen.losses else None,
        shadow_count=seen.shadow_count,
        shadow_agreed=seen.shadow_agreed,
        shadow_devices=len(shares),
        shadow_mean=1.0 - statistics.fmean(shares) if shares else None,
        shadow_most=1.0 - bound(shares) if len(shares) >= _FEWEST_DEVICES else None,
    )
