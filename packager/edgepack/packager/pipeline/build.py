"""`edgepack build`, from the model file to the signed and rehearsed bundle.

1. Refuse early: output, key, profiles, their toolchains, model, declarations, hooks, samples, one
   after another.
2. Divide the samples, and choose golden ones.
3. Prepare a variant for each profile. The last one's provider stays loaded until 5, so that little
   else is left to do that takes memory.
4. Lay the bundle out, write its report, sign it.
5. Rehearse it with the agent's own verifier, matching, probe and choice.
6. Move it to its place in one step, and put the report with times beside it.

All work lies in a hidden folder beside the output, which is removed whatever happens: a build
that fails, is interrupted or fills the disk leaves what was there before. Only a report of what was
tried stays, where gates refused, and what a search measured (`search/journal.py`).
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.bundle.keys import load_private_key
from edgepack.errors import BuildError, DeviceError, ProfileError
from edgepack.packager.bundling.assemble import BundleParts, finish, lay_out
from edgepack.packager.bundling.output import check_output
from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.bundling.publishing import disk_error, publish, work_folder
from edgepack.packager.bundling.rehearse import rehearse
from edgepack.packager.bundling.shipped_hooks import check_shipped_hooks
from edgepack.packager.config.inputs import check_declarations
from edgepack.packager.config.outputs import check_outputs
from edgepack.packager.graph.held_weights import hold_weights
from edgepack.packager.pipeline.build_samples import BuildSamples, open_build_samples
from edgepack.packager.pipeline.prepare_variant import prepare_variant
from edgepack.packager.pipeline.report_composition import add_times, compose_report, report_refusal
from edgepack.packager.pipeline.report_files import (
    join_remedies,
    refusal_error,
    report_refusals,
    write_report,
)
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.pipeline.settings_search import SearchPlan
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import Progress
from edgepack.packager.reports.own_names import name_in_error, name_in_report, own_names
from edgepack.packager.reports.report import RefusedProfile, Report
from edgepack.packager.runtime.evaluator import Venue, find_venue
from edgepack.packager.runtime.pinned_toolchain import pin_toolchains
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.runtime.tool_versions import tool_versions
from edgepack.packager.samples.golden_selection import MOST_SAMPLES
from edgepack.packager.search.combinations import Combination, SearchedKey, combine
from edgepack.packager.search.journal import Journal, journal_folder
from edgepack.packager.search.time_limit import share_time
from edgepack.packager.source.huggingface.folder import open_source
from edgepack.packager.source.model import SourceModel, static_or_error
from edgepack.packager.source.watched_outputs import watch_before_postprocessing


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was built.

    Attributes:
        output: The bundle.
        digest: Its digest, hex.
        report: The report with times.
        report_html, report_json: Where it lies, beside the bundle.
    """

    output: Path
    digest: str
    report: Report
    report_html: Path
    report_json: Path


def build(request: BuildRequest, progress: Progress) -> BuildResult:
    """Builds, signs and rehearses a bundle.

    Args:
        request: What to build.
        progress: Told how far it is.

    Raises:
        EdgepackError: Anything that keeps a bundle from being made; nothing is left behind.
    """
    try:
        return _build(request, progress)
    except OSError as error:
        raise disk_error(error, request.output) from error


def _build(request: BuildRequest, progress: Progress) -> BuildResult:
    # 1
    check_output(request.output, replace=request.replace)
    key = load_private_key(request.key)
    combinations = _load_combinations(request.profiles, request.searched)
    profiles = tuple(entries[0].profile for entries in combinations)
    toolchains = pin_toolchains(request.toolchains, profiles)
    venues = {
        profile.name: find_venue(profile, toolchains.get(profile.name)) for profile in profiles
    }
    if request.hooks is not None:
        check_shipped_hooks(request.hooks)
    with work_folder(request.output) as work, ProviderProcess() as process:
        source = open_source(request.model, request.shapes, request.values, work, progress)
        check_declarations(request.declarations, source.inputs, request.declared_in, source.fixed)
        check_outputs(request.outputs, source.outputs, request.declared_in)
        meanings = {name: declared.meaning for name, declared in request.outputs.items()}
        if not request.keep_going:
            for profile in profiles:
                _check_shapes(source, profile)
        model = hold_weights(source.model, work / "source.weights")
        source = replace(source, model=model, meanings=meanings)
        if request.metric is None and request.labels is None:  # these know what outputs mean
            source = watch_before_postprocessing(source)
        build_samples = open_build_samples(request, source, profiles, work, progress)  # 2
        # 3
        variants, refused = _prepare_all(
            request, source, combinations, build_samples, venues, process, work, progress
        )
        profiles = _taken(combinations, variants)
        # 4
        parts = BundleParts(
            name=request.name,
            version=request.version,
            release=request.release,
            created_at=request.created_at,
            source_sha256=source.sha256,
            tools=tool_versions(),
            variants=variants,
            golden=build_samples.golden,
            hooks=request.hooks,
        )
        folder = work / "bundle"
        folder.mkdir()
        laid_out = lay_out(folder, parts)
        spell = own_names(source.model.graph)
        report = compose_report(parts, laid_out, source, build_samples, profiles, refused)
        report = name_in_report(report, spell)
        digest = finish(folder, parts, laid_out, report, key)
        # 5
        rehearsal = rehearse(folder, key.public_key(), process, progress, toolchains)
        # 6
        publish(folder, request.output, work)
    timed = name_in_report(add_times(report, variants, refused, rehearsal), spell)
    html, json = write_report(timed, request.output)
    return BuildResult(
        output=request.output, digest=digest, report=timed, report_html=html, report_json=json
    )


def _load_combinations(
    names: tuple[str, ...], searched: tuple[SearchedKey, ...]
) -> tuple[tuple[Combination, ...], ...]:
    """Each profile in every combination that is searched, all checked."""
    if not names:
        raise BuildError(
            "no profile was named: for which hardware is the bundle?",
            remedy="--profile cpu  (edgepack profiles list shows all)",
        )
    combinations: dict[str, tuple[Combination, ...]] = {}
    for entries in combine(names, searched):
        name = entries[0].profile.name
        if name in combinations:
            raise ProfileError(f"profile {name!r} is named twice", remedy="name each profile once")
        combinations[name] = entries
    return tuple(combinations.values())


def _taken(
    combinations: tuple[tuple[Combination, ...], ...], variants: tuple[PreparedVariant, ...]
) -> tuple[Profile, ...]:
    """Each profile with the values that its variant was made with."""
    made = {variant.profile_sha256 for variant in variants}
    return tuple(
        next(
            (entry.profile for entry in entries if entry.profile.sha256 in made),
            entries[0].profile,
        )
        for entries in combinations
    )


def _check_shapes(source: SourceModel, profile: Profile) -> None:
    if profile.limits.static_shapes:
        static_or_error(source, profile.name)


def _prepare_all(
    request: BuildRequest,
    source: SourceModel,
    combinations: tuple[tuple[Combination, ...], ...],
    build_samples: BuildSamples,
    venues: Mapping[str, Venue],
    process: ProviderProcess,
    work: Path,
    progress: Progress,
) -> tuple[tuple[PreparedVariant, ...], tuple[RefusedProfile, ...]]:
    variants, refused = [], []
    limits = share_time(request.budget_s, len(combinations))
    for entries in combinations:
        process.close()  # a simulator holds 200 MB: only the last variant's waits for its rehearsal
        profile = entries[0].profile
        journal = Journal(journal_folder(request.output) / f"{profile.name}.jsonl")
        folder = work / "variants" / profile.name
        folder.mkdir(parents=True)
        try:
            _check_shapes(source, profile)
            variants.append(
                prepare_variant(
                    source,
                    profile,
                    build_samples.split,
                    work_dir=folder,
                    progress=_for_profile(progress, profile.name),
                    allow_degraded=request.allow_degraded,
                    process=process,
                    tried=build_samples.provider_samples(MOST_SAMPLES),
                    float_source=build_samples.float_source,
                    metric=request.metric,
                    labelled=build_samples.labelled,
                    plan=SearchPlan(
                        combinations=entries,
                        limit=next(limits),
                        journal=journal,
                    ),
                    venue=venues[profile.name],
                )
            )
        except (BuildError, DeviceError, ProfileError) as error:
            name_in_error(error, own_names(source.model.graph))
            if not request.keep_going:
                built = tuple(f"{v.name} was built, and is not published." for v in variants)
                hint = report_refusals(
                    request, source, build_samples, (report_refusal(profile.name, error),), built
                )
                raise refusal_error(profile, error, hint, several=len(combinations) > 1) from error
            refused.append(report_refusal(profile.name, error))
    if not variants:
        reasons = "; ".join(f"{entry.profile}: {entry.problem}" for entry in refused)
        hint = report_refusals(request, source, build_samples, tuple(refused), ())
        raise BuildError(
            f"no profile could be built: {reasons}", remedy=join_remedies(refused[0].remedy, hint)
        )
    return tuple(variants), tuple(refused)


def _for_profile(progress: Progress, name: str) -> Progress:
    def prefixed(what: str, done: int, total: int) -> None:
        progress(f"{name}: {what}", done, total)

    return prefixed
