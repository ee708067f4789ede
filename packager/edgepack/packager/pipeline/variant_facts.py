"""Facts of a variant for the manifest: requirements, toolchain, accuracy."""

import onnx

from edgepack.bundle.manifest import Accuracy, Placement, Requirements, Toolchain
from edgepack.packager.gates.proof import is_proven, samples_to_prove
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.graph.queries import attribute
from edgepack.packager.passes.compile import CompiledContext
from edgepack.packager.pipeline.holdout_verdict import HoldoutVerdict
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.tool_versions import tool_versions
from edgepack.tasks.details import SAMPLES_TO_PROVE, TASK_KEPT, VALUE_LOW


def unverified_placement(profile: Profile) -> Placement:
    """Return the placement of a variant with a provider that cannot run here."""
    return Placement(provider=profile.device.provider, taken=0, total=0, verified=False)


_WINDOW_RUNTIME = ">=1.24"
"""GroupQueryAttention of ONNX Runtime 1.23 sees a token more than `local_window_size`."""


def requirements_of(
    profile: Profile, compiled: CompiledContext | None, model: onnx.ModelProto | None = None
) -> Requirements:
    """Return the requirements on a device.

    Args:
        profile: The variant's profile.
        compiled: The compiled context, if any.
        model: The source model: attention with a window needs a newer ONNX Runtime.
    """
    device = profile.device
    nodes = model.graph.node if model is not None else ()
    has_window = any(attribute(node, "local_window_size", -1) > 0 for node in nodes)
    ranges = (device.runtime, _WINDOW_RUNTIME if has_window else "")
    return Requirements(
        arch=device.arch,
        cpu_features=device.cpu_features,
        soc=device.soc,
        runtime=",".join(filter(None, ranges)),
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


def accuracy_of(validated: HoldoutVerdict, verdict: Verdict, provider: str) -> Accuracy:
    """Return the verdict with its evidence, rounded to significant digits.

    Args:
        validated: Measurements on the held-out samples.
        verdict: The verdict for people.
        provider: Where the model ran.
    """
    details = {}
    for error in validated.seen.errors:
        suffix = f"[{error.output}]" if len(validated.seen.errors) > 1 else ""
        details[f"cosine{suffix}"] = round(error.cosine, 6)
        details[f"nrmse{suffix}"] = round(error.nrmse, 6)
        details[f"sqnr_db{suffix}"] = round(error.sqnr_db, 2)
        details[f"max_abs_error{suffix}"] = round(error.max_abs_error, 6)
    measures = [measure for one in validated.single for measure in one.measures]
    for measure in measures:
        suffix = f"[{measure.output}]" if len(measures) > 1 and measure.output else ""
        details[f"{measure.metric}{suffix}"] = round(measure.value, 6)
    for agreement in verdict.agreements:
        details |= {name: round(value, 6) for name, value in agreement.details.items()}
    if verdict.low is not None:
        details[VALUE_LOW] = round(max(verdict.low, 0.0), 6)
    if not is_proven(verdict):
        details[SAMPLES_TO_PROVE] = float(samples_to_prove(verdict, validated.count) or 0)
    if verdict.task_kept is not None:
        details[TASK_KEPT] = round(verdict.task_kept, 6)
    return Accuracy(
        metric=verdict.metric,
        value=round(verdict.value, 6),
        float_value=round(verdict.float_value, 6),
        budget=round(verdict.shown_budget, 6),
        sample_count=validated.count,
        provider=provider,
        details=details,
        weak=". ".join(
            (*verdict.weak[:1], *(one[:1].upper() + one[1:] for one in verdict.weak[1:]))
        ),
    )
