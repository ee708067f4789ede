"""Step 4 of a build: a variant for each profile in turn."""

from pathlib import Path

from edgepack.errors import BuildError, DeviceError, EdgepackError, ProfileError
from edgepack.packager.bundling.prepared_variant import PreparedVariant, PreparedVariants
from edgepack.packager.pipeline.board_validation import describe_proof
from edgepack.packager.pipeline.build_samples import OpenedBuild
from edgepack.packager.pipeline.check_request import CheckedRequest, is_there_already
from edgepack.packager.pipeline.fixed_decoders import FixedDecoders
from edgepack.packager.pipeline.prepare_variant import prepare_variant
from edgepack.packager.pipeline.prequantized import avoid_int16_saturation
from edgepack.packager.pipeline.refusal import TimeEndedError, report_refusal
from edgepack.packager.pipeline.report_composition import (
    join_remedies,
    refusal_error,
    report_refusals,
)
from edgepack.packager.pipeline.resources import Resources
from edgepack.packager.pipeline.selection import EvaluationInputs, VariantPlan
from edgepack.packager.progress import Progress, for_profile
from edgepack.packager.reports.own_names import name_in_error, own_names
from edgepack.packager.reports.report import RefusedProfile
from edgepack.packager.runtime.board import BoardError
from edgepack.packager.runtime.deadline import OutOfTimeError
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.samples.golden_selection import MOST_SAMPLES
from edgepack.packager.search.journal import Journal, journal_folder
from edgepack.packager.search.time_limit import share_time


def prepare_variants(
    opened: OpenedBuild,
    checked: CheckedRequest,
    work: Path,
    process: ProviderProcess,
    progress: Progress,
) -> PreparedVariants:
    """Prepare the variant of each profile.

    Where the time of the build ends, variants that are finished are published, and the other
    profiles are reported as not finished.

    Args:
        opened: Source and samples; its request decides whether the build continues after a refusal,
            and the time of the search.
        checked: The profiles, and their places of runs.
        work: Folder for everything that is written.
        process: Runs variants on their provider; the last process stays.
        progress: Called for each step.

    Raises:
        BuildError: A profile is refused, or all profiles are.
    """
    request, source, samples = opened.request, opened.source, opened.samples
    inputs = EvaluationInputs(
        source=source,
        split=samples.split,
        provider_samples=samples.split.provider_samples(MOST_SAMPLES),
        float_source=samples.float_source,
        metric=request.metric,
        labelled=samples.labelled,
    )
    decoders = FixedDecoders(request, inputs, work / "fixed")
    variants: list[PreparedVariant] = []
    refused: list[RefusedProfile] = []
    simulated = [checked.venues[profile.name].is_simulated for profile in checked.profiles]
    limits = share_time(request.budget_s, simulated, checked.deadline)
    for entries in avoid_int16_saturation(checked.combinations, source):
        if is_there_already(entries[0].profile, variants):
            continue
        process.close()  # a simulator holds 200 MB: only the last variant's waits for its rehearsal
        profile = entries[0].profile
        plan = VariantPlan(
            combinations=entries,
            venue=checked.venues[profile.name],
            plain_releases=checked.plain_releases,
            allow_degraded=request.allow_degraded,
            is_strict=request.strict,
        )
        resources = Resources(
            limit=next(limits),
            journal=Journal(journal_folder(request.output) / f"{profile.name}.jsonl"),
            process=process,
            progress=for_profile(progress, profile.name),
        )
        try:
            if variants and checked.deadline.is_over:
                raise TimeEndedError
            own = decoders.inputs_for(profile, resources.progress)
            folder = work / "variants" / profile.name
            variants.append(_prepare(own, decoders.plan_for(plan), resources, folder))
        except (BuildError, DeviceError, ProfileError) as error:
            name_in_error(error, own_names(source.model.graph))
            if isinstance(error, BoardError):
                error.found_in = describe_proof(profile.name, variants, checked.boards)
            is_kept = variants and isinstance(error, TimeEndedError)  # what is finished is not lost
            if not (request.keep_going or is_kept):
                raise _refuse(opened, plan, error, variants) from error
            refused.append(report_refusal(profile.name, error))
    if not variants:
        raise _refuse_all(opened, tuple(refused))
    return PreparedVariants(variants=tuple(variants), refused=tuple(refused))


def _prepare(
    inputs: EvaluationInputs, plan: VariantPlan, resources: Resources, folder: Path
) -> PreparedVariant:
    try:
        return prepare_variant(inputs, plan, resources, folder)
    except OutOfTimeError as error:
        raise TimeEndedError from error


def _refuse(
    opened: OpenedBuild, plan: VariantPlan, error: EdgepackError, built: list[PreparedVariant]
) -> BuildError:
    """Return a profile's refusal, which ends the build, with the report of the attempts."""
    notes = tuple(f"{variant.name} was built, and is not published." for variant in built)
    refusal = report_refusal(plan.profile.name, error)
    hint = report_refusals(opened, (refusal,), notes)
    return refusal_error(plan.profile, error, hint, several=len(opened.request.profiles) > 1)


def _refuse_all(opened: OpenedBuild, refused: tuple[RefusedProfile, ...]) -> BuildError:
    reasons = "; ".join(f"{entry.profile}: {entry.problem}" for entry in refused)
    hint = report_refusals(opened, refused, ())
    return BuildError(
        f"no profile could be built: {reasons}", remedy=join_remedies(refused[0].remedy, hint)
    )
