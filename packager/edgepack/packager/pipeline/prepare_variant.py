"""From a float model and a profile to a variant that passed its gates.

1. The float passes; the model must still compute what the source computes.
2. Quantization, where the profile asks for it, with a search for accuracy.
3. Latency, where the provider is here: the float model is published where it is better.
4. The verdict on held-out samples; a look inside: the error of each tensor, the range of each
   scale; and a run of golden samples on the provider in a fresh process, where it is here or
   simulated: compatibility, placement, and the outputs once more (`provider_validation`).
5. Where verdict or run is a no, the search may go on (`confirming`).
6. The gates; what they refuse is an error, or marked with `--allow-degraded`. Before accuracy is
   refused, or where little is saved, a look at other profiles for the device (`other_profiles`).
7. Compilation ahead of time, where the profile asks for it.
"""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.gates import checks as gates
from edgepack.packager.gates.labels import LabelledSamples
from edgepack.packager.gates.tolerances import derive_tolerances
from edgepack.packager.gates.user_metric import Metric
from edgepack.packager.gates.verdict_notes import describe_verdict
from edgepack.packager.metrics.inspection import Inspection, inspect
from edgepack.packager.passes.compile import CompiledContext, compile_context
from edgepack.packager.pipeline.holdout_validation import HoldoutValidation
from edgepack.packager.pipeline.holdout_verdict import HoldoutSet
from edgepack.packager.pipeline.prepared_combination import SearchedCombination
from edgepack.packager.pipeline.profile_advice import advise, look_at_alternatives
from edgepack.packager.pipeline.provider_validation import ProviderValidation
from edgepack.packager.pipeline.refusal import VariantRefusedError
from edgepack.packager.pipeline.savings_summary import describe_little, saves_little
from edgepack.packager.pipeline.selection import EvaluationInputs, Selection
from edgepack.packager.pipeline.settings_search import SearchPlan, plan_of, search_settings
from edgepack.packager.pipeline.variant_facts import (
    accuracy_of,
    requirements_of,
    toolchain_of,
    unverified_placement,
)
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import Progress
from edgepack.packager.reports.report import RefusedVariant
from edgepack.packager.runtime.evaluator import Venue, find_venue
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.runtime.venue_notes import describe_venue
from edgepack.packager.search.attempts import Attempt, SensitiveNode
from edgepack.packager.search.description import describe_search
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tensors.sequence import Samples, SampleSplit

MODEL_FILE = "model.onnx"
_MOST_SENSITIVE = 20


def prepare_variant(
    source: SourceModel,
    profile: Profile,
    split: SampleSplit,
    *,
    tried: Samples,
    float_source: Run,
    work_dir: Path,
    progress: Progress,
    allow_degraded: bool,
    process: ProviderProcess | None = None,
    metric: Metric | None = None,
    labelled: LabelledSamples | None = None,
    plan: SearchPlan | None = None,
    venue: Venue | None = None,
) -> PreparedVariant:
    """Prepares the variant of one profile; see the steps above.

    Args:
        source: The source model, with static shapes where the profile needs them.
        profile: The profile.
        split: Samples for ranges, for choosing, and for the verdict.
        tried: Of those for the verdict some, golden ones first; as many of them as its speed allows
            run on the provider.
        float_source: Runs the source model.
        work_dir: Folder for everything that is written; the variant ends up inside.
        progress: Told about each step.
        allow_degraded: Publish a variant that gates refuse, marked.
        process: Runs the variant on its provider, and is kept for its rehearsal; None keeps none.
        labelled: Held-out samples with labels, which then give the verdict; candidates are still
            chosen by how near they are to the float model.
        metric: The user's own metric, which then decides in place of agreement with the float
            model.
        plan: What is searched, and with what; the profile as it stands where it is None.
        venue: Where the profile can run here; None looks.

    Returns:
        The variant, its files in `folder`.

    Raises:
        BuildError: A pass failed, the provider refuses the model, or a gate does: with numbers.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    provider_validation = ProviderValidation(float_source, tried, process, progress)
    venue = venue or find_venue(profile)
    if venue.is_simulated:  # and nothing is raced here, which a process that loads would disturb
        provider_validation.load_ahead(profile, venue)
    plan = plan or plan_of(profile)
    evaluation = EvaluationInputs(
        split=split, float_source=float_source, metric=metric, progress=progress
    )
    searched = search_settings(source, plan, evaluation, venue=venue, work_dir=work_dir)  # 1. to 3.
    folder = work_dir / "variant"
    folder.mkdir(exist_ok=True)
    final = folder / MODEL_FILE
    held_out = HoldoutSet(
        float_source=float_source, samples=split.held_out, metric=metric, labelled=labelled
    )

    def look(found: SearchedCombination) -> Inspection | None:
        return _inspect(found, split.held_out, work_dir, progress)

    confirmation = HoldoutValidation(
        searched, source, final, held_out, provider_validation, look, progress
    )
    validated = confirmation.confirm()  # 4., 5.
    searched, verdict, distances = validated.searched, validated.verdict, validated.distances
    profile, evaluator, chosen = searched.profile, searched.evaluator, searched.chosen
    size_bytes, judged_count = validated.size_bytes, validated.count
    ran = validated.ran
    trial = ran.trial if ran else None
    advice = None
    if profile.gates.alternatives and (saves_little(searched) or not verdict.passed):
        outlooks = look_at_alternatives(source, profile, evaluation, plan, work_dir)
        advice = advise(outlooks, chosen.found)
    seen = [distances, *((ran.distances,) if ran else ())]
    placement = trial.placement if trial else unverified_placement(profile)
    refusals = [
        refusal
        for refusal in (
            gates.check_accuracy(
                profile,
                verdict,
                judged_count,
                describe_search(chosen.found),
                split.uncovered,
                advice,
            ),
            ran.refusal if ran else None,
            gates.check_placement(profile, placement, trial.left if trial else ()),
            gates.check_size(profile, size_bytes, source.size_bytes),
        )
        if refusal is not None
    ]
    accuracy = accuracy_of(verdict, distances, judged_count, evaluator.provider)
    notes = (
        *searched.prepared.notes,
        *chosen.notes,
        *searched.notes,
        *describe_little(searched, advice),
        *validated.notes,
        *describe_verdict(verdict, judged_count, split.held_out, distances),
        *describe_venue(evaluator, profile, trial),
    )
    attempts, sensitive_nodes = _tell_search(chosen)
    refused = RefusedVariant(
        precision=chosen.precision,
        size_bytes=size_bytes,
        accuracy=accuracy,
        placement=placement,
        attempts=attempts,
        sensitive_nodes=sensitive_nodes,
        inspection=validated.inspection,
        left_nodes=trial.left if trial else (),
        notes=notes,
    )
    _refuse(refusals, refused, allow_degraded)  # 6.
    compiled = _compile(final, work_dir, profile, split.held_out, venue, progress)  # 7.
    if compiled and process:
        process.close()  # it never opened the compiled file: a fresh one shall
    return PreparedVariant(
        name=profile.name,
        folder=compiled.folder if compiled else folder,
        model_file=compiled.model_file if compiled else MODEL_FILE,
        profile=profile.name,
        profile_sha256=profile.sha256,
        precision=chosen.precision,
        provider=profile.device.provider,
        device=profile.device.type,
        compatibility_string=compiled.compatibility_string if compiled else "",
        session_options=profile.provider.session,
        provider_options=compiled.provider_options if compiled else profile.provider.options,
        requires=requirements_of(profile, compiled),
        toolchain=toolchain_of(compiled),
        accuracy=accuracy,
        placement=compiled.placement if compiled else placement,
        tolerances=derive_tolerances(seen, source.watched),
        degraded=bool(refusals),
        latency_ms=chosen.latency_ms,
        float_latency_ms=chosen.float_latency_ms,
        attempts=attempts,
        sensitive_nodes=sensitive_nodes,
        inspection=validated.inspection,
        left_nodes=trial.left if trial else (),
        timed_notes=chosen.timed_notes,
        notes=(
            *notes,
            *((compiled.because,) if compiled else ()),
            *(f"Published although: {refusal.problem}." for refusal in refusals),
        ),
    )


def _inspect(
    searched: SearchedCombination, samples: Samples, work_dir: Path, progress: Progress
) -> Inspection | None:
    """Looks inside the best lowered candidate, whether it is the one that is published or not."""
    if searched.chosen.found is None:
        return None
    progress("looking at the error of each layer", 0, 0)
    best = searched.chosen.found.best
    origin = best.origin.model
    return inspect(
        searched.prepared.model if origin is None else origin,
        best.path,
        samples,
        calibrated=best.origin.observed,
        work_dir=work_dir,
    )


def _tell_search(chosen: Selection) -> tuple[tuple[Attempt, ...], tuple[SensitiveNode, ...]]:
    found = chosen.found
    if found is None:
        return (), ()
    best = (found.best.words, found.best.verdict.value)
    keys = [(attempt.what, attempt.accuracy) for attempt in found.attempts]
    first = keys.index(best)
    attempts = tuple(
        replace(attempt, is_best=number == first, latency_ms=chosen.latencies_ms.get(key))
        for number, (key, attempt) in enumerate(zip(keys, found.attempts, strict=True))
    )
    return attempts, tuple(
        SensitiveNode(name=cost.name, noise=float(f"{cost.noise:.3g}"))
        for cost in found.sensitive_nodes[:_MOST_SENSITIVE]
    )


def _refuse(
    refusals: Sequence[gates.Refusal], variant: RefusedVariant, allow_degraded: bool
) -> None:
    if refusals and not allow_degraded:
        first = refusals[0]
        raise VariantRefusedError(
            gates.join_problems(refusals),
            found_in=first.found_in,
            remedy=first.remedy,
            variant=variant,
        )


def _compile(
    model: Path,
    work_dir: Path,
    profile: Profile,
    samples: Samples,
    venue: Venue,
    progress: Progress,
) -> CompiledContext | None:
    settings = profile.compile
    if not settings.enabled:
        return None
    progress(f"{profile.name}: compiling for {settings.soc_model or settings.htp_arch}", 0, 0)
    return compile_context(
        model,
        work_dir / "compiled",
        feeds=samples.read(0),
        soc_model=settings.soc_model,
        htp_arch=settings.htp_arch,
        provider_options=profile.provider.options,
        compile_options=settings.options,
        session_options=profile.provider.session,
        timeout_s=settings.timeout_s,
        toolchain=venue.toolchain,
    )
