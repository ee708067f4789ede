"""From a float model and a profile to a variant that passed its gates.

1. Search: the float passes, after which the model must still compute the same as the source; then,
   if the profile lowers the precision, candidates for accuracy and speed; the float model is kept
   if better (`settings_search`).
2. Validate by held-out samples, by an inspection (the error of each tensor, the range of each
   scale) and by a run on the provider in a fresh process, if the provider is here or simulated;
   after a failure the search continues (`holdout_validation`).
3. Check other profiles for the device, if this profile serves the model badly (`profile_advice`).
4. Apply the gates: a failed gate is an error, or a mark with `--allow-degraded`.
5. Compile ahead of time, if the profile requests compilation.
6. Check the shipped file against the profile's limits, regardless of its writer.
7. Run an uncompiled variant in ONNX Runtime by itself (`plain_runtime_check`).
"""

from collections.abc import Sequence
from pathlib import Path

import onnx
from msgspec.structs import asdict, replace

from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.gates import checks as gates
from edgepack.packager.gates.compatibility import check_compatibility
from edgepack.packager.gates.tolerances import derive_agreements, derive_tolerances
from edgepack.packager.gates.verdict_notes import describe_verdict
from edgepack.packager.passes.compile import CompiledContext, compile_context
from edgepack.packager.pipeline.fixed_decoders import STEP_CONTEXT, add_step, single_feeds
from edgepack.packager.pipeline.holdout_validation import search_until_valid
from edgepack.packager.pipeline.plain_runtime_check import PlainCheck, check_plain_runtime
from edgepack.packager.pipeline.profile_advice import advise, look_at_alternatives
from edgepack.packager.pipeline.provider_validation import ProviderValidation
from edgepack.packager.pipeline.refusal import VariantRefusedError
from edgepack.packager.pipeline.resources import Resources
from edgepack.packager.pipeline.savings_summary import describe_little, saves_little
from edgepack.packager.pipeline.selection import EvaluationInputs, Selection, VariantPlan
from edgepack.packager.pipeline.settings_search import SettingsSearch
from edgepack.packager.pipeline.variant_facts import (
    accuracy_of,
    requirements_of,
    toolchain_of,
    unverified_placement,
)
from edgepack.packager.pipeline.variant_validation import (
    MODEL_FILE,
    ValidatedCombination,
    VariantValidator,
    measured_model,
)
from edgepack.packager.profiles.reading import describe_passes
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import BuildStep
from edgepack.packager.reports.report import BoardResult, MeasuredVariant, Timing
from edgepack.packager.runtime.evaluator import describe_venue
from edgepack.packager.search.attempts import Attempt, SensitiveNode
from edgepack.packager.search.candidates import describe_search
from edgepack.packager.source.decoders.fixed import STEP

_MOST_SENSITIVE = 20


def prepare_variant(
    inputs: EvaluationInputs, plan: VariantPlan, resources: Resources, work_dir: Path
) -> PreparedVariant:
    """Prepare the variant of a profile; see the steps above.

    Args:
        inputs: The source model and samples.
        plan: The profile with the settings to search, and the place of runs on this host.
        resources: Remaining time, journal, provider process, and receiver of progress.
        work_dir: Folder for everything that is written; the variant ends up inside.

    Returns:
        The variant, its files in `folder`.

    Raises:
        BuildError: A pass failed, the provider refuses the model, or a gate does: with numbers.
        OutOfTimeError: The time of the build was used up before a candidate was finished.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    with resources.limit.build.interrupting():
        validated = _search_and_validate(inputs, plan, resources, work_dir)  # 1., 2.
    advice = _look_for_advice(inputs, validated, resources, work_dir)  # 3.
    candidate = _describe(inputs, validated, advice)
    refusals = _find_refusals(inputs, validated, advice)  # 4.
    if plan.is_strict and candidate.accuracy.weak:
        raise VariantRefusedError((gates.refuse_weak(plan.profile, candidate.accuracy),), candidate)
    if refusals and not plan.allow_degraded:
        raise VariantRefusedError(refusals, candidate)
    profile = validated.searched.profile
    model = work_dir / "variant" / MODEL_FILE
    fixed = add_step(model, inputs, inputs.fixed) if inputs.fixed else None
    compiled = _compile(model, profile, inputs, plan, resources)  # 5.
    if compiled and resources.process:
        resources.process.close()  # it never opened the compiled file: a fresh one shall
    shipped = compiled.folder / compiled.model_file if compiled else model
    incompatible = check_compatibility(profile, onnx.load(shipped, load_external_data=False))  # 6.
    if incompatible:
        raise VariantRefusedError((incompatible,), candidate)
    plain = PlainCheck()
    if compiled is None and plan.plain_releases:  # 7.
        plain = check_plain_runtime(
            measured_model(work_dir, inputs.source),
            validated.searched,
            validated.verdict,
            inputs,
            plan.plain_releases,
            resources,
        )
    prepared = _as_prepared(inputs, validated, candidate, refusals, compiled, plain, model)
    if fixed is not None and compiled is not None:
        fixed = replace(fixed, step_file=f"{STEP_CONTEXT}/{compiled.model_file}")
    return replace(prepared, fixed_decoder=fixed)


def _search_and_validate(
    inputs: EvaluationInputs, plan: VariantPlan, resources: Resources, work_dir: Path
) -> ValidatedCombination:
    """Search and validate on held-out samples; free the search's data."""
    provider_validation = ProviderValidation(
        inputs.float_source,
        inputs.provider_samples,
        len(inputs.split.golden),
        resources.process,
        resources.progress,
        resources.limit.profile,
    )
    if plan.venue.is_simulated:  # and nothing is raced here, which a process that loads disturbs
        provider_validation.load_ahead(plan.profile, plan.venue)
    search = SettingsSearch(inputs, plan, resources, work_dir)
    validator = VariantValidator(
        inputs, provider_validation, work_dir, resources.progress, resources.limit
    )
    return search_until_valid(search, search.run(), validator)


def _look_for_advice(
    inputs: EvaluationInputs,
    validated: ValidatedCombination,
    resources: Resources,
    work_dir: Path,
) -> gates.Advice | None:
    """Return the advice about other profiles for the device; None if not needed."""
    searched = validated.searched
    if not searched.profile.gates.alternatives:
        return None
    if validated.verdict.passed and not saves_little(searched):
        return None
    outlooks = look_at_alternatives(inputs, searched.profile, resources, work_dir)
    return advise(outlooks, searched.selection.found)


def _find_refusals(
    inputs: EvaluationInputs, validated: ValidatedCombination, advice: gates.Advice | None
) -> tuple[gates.Refusal, ...]:
    searched, run = validated.searched, validated.provider_run
    profile, source = searched.profile, inputs.source
    placement = run.trial.placement if run else unverified_placement(profile)
    found = (
        gates.check_accuracy(
            profile,
            validated.verdict,
            validated.count,
            describe_search(searched.selection.found),
            inputs.split.uncovered,
            advice,
            is_lowered=searched.selection.is_lowered,
            are_series=validated.are_series,
        ),
        run.refusal if run else None,
        gates.check_placement(profile, placement, run.trial.left if run else ()),
        gates.check_size(profile, validated.size_bytes, source.size_bytes),
    )
    return tuple(refusal for refusal in found if refusal is not None)


def _describe(
    inputs: EvaluationInputs, validated: ValidatedCombination, advice: gates.Advice | None
) -> MeasuredVariant:
    """Return the facts of a candidate, rejected or not."""
    searched, run = validated.searched, validated.provider_run
    selection, evaluator = searched.selection, searched.evaluator
    verdict = validated.verdict
    if not selection.is_lowered:  # the float model itself, or what its maker quantized
        verdict = replace(verdict, budget=verdict.shown_budget, asked=None, weak=())
    attempts, sensitive_nodes = _tell_search(selection)
    held_out = inputs.split.held_out
    return MeasuredVariant(
        precision=selection.precision,
        size_bytes=validated.size_bytes,
        accuracy=accuracy_of(
            validated,
            verdict,
            searched.profile.device.provider if validated.boards else evaluator.provider,
        ),
        boards=_with_races(validated.boards, selection),
        confidence=validated.confidence,
        placement=run.trial.placement if run else unverified_placement(searched.profile),
        attempts=attempts,
        sensitive_nodes=sensitive_nodes,
        inspection=validated.inspection,
        left_nodes=run.trial.left if run else (),
        notes=(
            *searched.prepared.notes,
            *selection.notes,
            *searched.notes,
            *describe_little(searched, advice),
            *validated.notes,
            *describe_verdict(verdict, validated.count, held_out, validated.single),
            *(
                describe_venue(evaluator, searched.profile, run.trial if run else None)
                if not validated.is_out_of_time
                else ()
            ),
        ),
        positions=verdict.positions,
    )


def _as_prepared(
    inputs: EvaluationInputs,
    validated: ValidatedCombination,
    candidate: MeasuredVariant,
    refusals: Sequence[gates.Refusal],
    compiled: CompiledContext | None,
    plain: PlainCheck,
    model: Path,
) -> PreparedVariant:
    searched, run = validated.searched, validated.provider_run
    profile, selection = searched.profile, searched.selection
    described = inputs.split.held_out.description
    seen = [validated.seen, *((run.seen,) if run else ())]
    if validated.on_stand_in is not None:
        seen.append(validated.on_stand_in)
    candidate = replace(
        candidate,
        placement=compiled.placement if compiled else candidate.placement,
        notes=(
            *candidate.notes,
            *((compiled.because,) if compiled else ()),
            *plain.notes,
            *(f"Published although: {refusal.problem}." for refusal in refusals),
        ),
    )
    return PreparedVariant(
        **asdict(candidate),
        name=profile.name,
        folder=compiled.folder if compiled else model.parent,
        model_file=compiled.model_file if compiled else model.name,
        profile=profile.name,
        profile_sha256=profile.sha256,
        provider=profile.device.provider,
        device=profile.device.type,
        compatibility_string=compiled.compatibility_string if compiled else "",
        session_options=profile.provider.session,
        provider_options=compiled.provider_options if compiled else profile.provider.options,
        requires=requirements_of(profile, compiled, inputs.source.model),
        toolchain=toolchain_of(compiled),
        agreements=derive_agreements(seen, described, inputs.source.watched),
        tolerances=derive_tolerances(seen, described, inputs.source.watched),
        degraded=bool(refusals),
        plain_runtime=plain.found,
        plain_provider=plain.on_provider,
        recipe=tuple(describe_passes(profile)),
        files=(),
        timing=_timing_of(selection),
        timed_notes=selection.timed_notes,
        float_because=selection.float_because,
    )


def _with_races(boards: Sequence[BoardResult], selection: Selection) -> tuple[BoardResult, ...]:
    """Return the results of boards with the times of the published and of the float model."""
    times = selection.speedup.on_boards if selection.speedup else {}
    timed = ((board, times.get(board.board, (None, None))) for board in boards)
    return tuple(
        replace(
            board,
            latency_ms=latency_ms if selection.is_lowered else float_ms,
            float_latency_ms=float_ms,
        )
        for board, (latency_ms, float_ms) in timed
    )


def _timing_of(selection: Selection) -> Timing:
    raced = selection.speedup
    has_interval = raced is not None and raced.low > 0.0
    return Timing(
        latency_ms=selection.latency_ms,
        float_latency_ms=selection.float_latency_ms,
        speedup=raced.ratio if raced else None,
        speedup_low=raced.low if raced and has_interval else None,
        speedup_high=raced.high if raced and has_interval else None,
        outcome=raced.outcome if raced else "",
    )


def _tell_search(selection: Selection) -> tuple[tuple[Attempt, ...], tuple[SensitiveNode, ...]]:
    found = selection.found
    if found is None:
        return (), ()
    best = (found.best.words, found.best.verdict.value)
    keys = [(attempt.what, attempt.accuracy) for attempt in found.attempts]
    first = keys.index(best)
    attempts = tuple(
        replace(attempt, is_best=number == first, latency_ms=selection.latencies_ms.get(key))
        for number, (key, attempt) in enumerate(zip(keys, found.attempts, strict=True))
    )
    return attempts, tuple(
        SensitiveNode(name=cost.name, noise=float(f"{cost.noise:.3g}"))
        for cost in found.sensitive_nodes[:_MOST_SENSITIVE]
    )


def _compile(
    model: Path, profile: Profile, inputs: EvaluationInputs, plan: VariantPlan, resources: Resources
) -> CompiledContext | None:
    """Compile a variant; of a decoder with fixed shapes both graphs, a context each."""
    settings, folder = profile.compile, model.parent.with_name("compiled")
    if not settings.enabled:
        return None
    resources.progress(BuildStep(what=f"compiling for {settings.soc_model or settings.htp_arch}"))
    feeds = inputs.split.held_out.read(0)
    graphs = [(model, folder, feeds)]
    if inputs.fixed is not None:
        own = single_feeds(feeds, inputs.fixed)
        graphs.append((model.with_name(STEP), folder / STEP_CONTEXT, own))
    contexts = [
        compile_context(
            graph,
            target,
            sample,
            settings,
            profile.provider,
            profile.limits,
            toolchain=plan.venue.toolchain,
            deadline=resources.limit.build,
        )
        for graph, target, sample in graphs
    ]
    return contexts[0]
