"""Facts of a variant for the manifest: requirements, toolchain, accuracy."""

from collections.abc import Sequence

from edgepack.bundle.accuracy_words import SAMPLES_TO_PROVE, TASK_KEPT, VALUE_LOW
from edgepack.bundle.manifest import Accuracy, Placement, Requirements, Toolchain
from edgepack.packager.gates.proof import is_proven, samples_to_prove
from edgepack.packager.gates.tasks import task_of
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.metrics.distance import OutputDistance
from edgepack.packager.metrics.kinds import KINDS, OutputKind
from edgepack.packager.passes.compile import CompiledContext
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.tool_versions import tool_versions


def unverified_placement(profile: Profile) -> Placement:
    """Return the placement of a variant whose provider cannot run here."""
    return Placement(provider=profile.device.provider, taken=0, total=0, verified=False)


def requirements_of(profile: Profile, compiled: CompiledContext | None) -> Requirements:
    """Return the requirements on a device, from the profile and the compiled context."""
    device = profile.device
    return Requirements(
        arch=device.arch,
        cpu_features=device.cpu_features,
        soc=device.soc,
        runtime=device.runtime,
        drivers=(compiled.required_sdks if compiled else {}) | device.drivers,
    )


def toolchain_of(compiled: CompiledContext | None) -> Toolchain:
    """Return the toolchain of the variant, as versions."""
    tools = tool_versions() | (compiled.tools if compiled else {})
    runtime = tools.pop("onnxruntime", "") or tools.get("onnxruntime-openvino", "")
    return Toolchain(
        onnxruntime=runtime,
        tools=dict(sorted(tools.items())),
        compiled_for=compiled.compiled_for if compiled else "",
    )


def accuracy_of(
    verdict: Verdict, distances: Sequence[OutputDistance], sample_count: int, provider: str
) -> Accuracy:
    """Return the verdict and, by output, the distances behind it, rounded to what they tell.

    Args:
        verdict: The verdict.
        distances: By output, on the samples that gave it.
        sample_count: How many those were.
        provider: Where they ran.
    """
    details = {}
    for distance in distances:
        suffix = f"[{distance.name}]" if len(distances) > 1 else ""
        if distance.kind is OutputKind.SELECTED:
            details[f"overlap{suffix}"] = round(distance.row_agreement or 0.0, 6)
            continue
        details[f"explained_variance{suffix}"] = round(distance.explained_variance, 6)
        if distance.neighbourhood is not None:
            details[f"neighbourhood{suffix}"] = round(distance.neighbourhood, 6)
        details[f"cosine{suffix}"] = round(distance.cosine, 6)
        details[f"nrmse{suffix}"] = round(distance.nrmse, 6)
        details[f"sqnr_db{suffix}"] = round(distance.sqnr_db, 2)
        details[f"max_abs_error{suffix}"] = round(distance.max_abs_error, 6)
        if distance.row_agreement is not None:
            details[f"top1_agreement{suffix}"] = round(distance.row_agreement, 6)
        if distance.own is not None:
            details[f"{KINDS[distance.kind].metrics[0]}{suffix}"] = round(distance.own, 6)
    if verdict.agreement is not None:
        told = task_of(verdict.agreement).details(verdict.agreement)
        details |= {name: round(value, 6) for name, value in told.items()}
    if verdict.low is not None:
        details[VALUE_LOW] = round(max(verdict.low, 0.0), 6)
    if not is_proven(verdict):
        details[SAMPLES_TO_PROVE] = float(samples_to_prove(verdict, sample_count) or 0)
    if verdict.task_kept is not None:
        details[TASK_KEPT] = round(verdict.task_kept, 6)
    return Accuracy(
        metric=verdict.metric,
        value=round(verdict.value, 6),
        float_value=round(verdict.float_value, 6),
        budget=round(verdict.told_budget, 6),
        sample_count=sample_count,
        provider=provider,
        details=details,
    )
