"""Power of a rollout: the least change that its gates find, before the rollout begins."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from sqlalchemy.orm import Session

from edgepack.fleet.database.candidates import Candidate
from edgepack.fleet.database.changes import noise_of
from edgepack.fleet.database.measures import scaled
from edgepack.fleet.database.schema import ReleaseRow
from edgepack.fleet.documents.gates import Finding, Gate
from edgepack.fleet.documents.rollouts import RolloutSettings
from edgepack.fleet.rollouts.gates import WAVE_END, Plan
from edgepack.fleet.rollouts.statistics import find_least_change
from edgepack.wire.orders import BundleRef

MAX_CLASSES = 6
"""Hardware classes that a preview names, the largest first."""


def expect(
    session: Session,
    bundle: BundleRef,
    rows: Sequence[Candidate],
    waves: Mapping[str, int],
    settings: RolloutSettings,
) -> tuple[Finding, ...]:
    """Return the least change that 9 of 10 rollouts find, by hardware class and wave.

    Only devices that run another release of the model can be compared. The gate is the first that
    compares times.

    Args:
        session: The transaction.
        bundle: The release.
        rows: The devices.
        waves: Wave index by device.
        settings: Settings of the rollout.
    """
    compared = [row for row in rows if row.runs is not None and row.runs.digest != bundle.digest]
    sizes = Counter(row.hardware_class for row in compared)
    release = session.get(ReleaseRow, bundle.digest)
    plan = Plan(
        thresholds=settings.thresholds,
        items=release.items if release else "answers",
        classes=len({row.hardware_class for row in rows}),
        waves=max(waves.values(), default=0) + 1 - bool(settings.control),
    )
    gate = next((one for one in plan.gates if one.is_timed), None)
    if gate is None:
        return ()
    found: list[Finding] = []
    for name, _ in sizes.most_common(MAX_CLASSES):
        of_wave = Counter(waves[row.id] for row in compared if row.hardware_class == name)
        noise = noise_of(session, bundle.name, name)[gate.name]
        devices = 0
        for wave in sorted(of_wave):
            devices += of_wave[wave]
            if wave < plan.waves:
                controls = sizes[name] - devices
                found.append(_finding(gate, plan, name, wave, devices, controls, noise))
    return tuple(found)


def _finding(
    gate: Gate, plan: Plan, name: str, wave: int, devices: int, controls: int, noise: float
) -> Finding:
    threshold = plan.threshold(gate)
    least = find_least_change(
        scaled(gate.name, gate.threshold if threshold is None else threshold),
        devices,
        noise=noise,
        effect=gate.effect,
        controls=controls,
        alpha=plan.alpha(gate.weight) * plan.share([(wave, WAVE_END)]),
    )
    return Finding(
        gate=gate.name,
        hardware_class=name,
        devices=devices,
        controls=controls,
        least=math.exp(least) if gate.comparison == "ratio" else least,
        noise=noise,
    )
