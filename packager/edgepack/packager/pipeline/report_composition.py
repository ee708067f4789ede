"""Composition of a build's report from the results of its steps, and writing next to the bundle,
also for refused builds.
"""

from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec.structs import replace

from edgepack.bundle.manifest import Variant
from edgepack.durable import write_file
from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.bundling.assemble import BundleParts, LaidOut
from edgepack.packager.bundling.prepared_variant import PreparedVariant, PreparedVariants
from edgepack.packager.bundling.rehearse import Rehearsal
from edgepack.packager.pipeline.build_samples import BuildSamples, OpenedBuild
from edgepack.packager.pipeline.fleet_feedback import Learnt, respond
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.reports.own_names import name_in_report, own_names
from edgepack.packager.reports.page import render_report
from edgepack.packager.reports.report import (
    ModelReport,
    RefusedProfile,
    Report,
    SamplesReport,
    VariantReport,
    encode_report,
    reported_files,
)
from edgepack.packager.runtime.board import BoardError
from edgepack.packager.runtime.tool_versions import tool_versions
from edgepack.packager.search.attempts import Attempt
from edgepack.packager.source.model import SourceModel


def compose_report(
    opened: OpenedBuild,
    parts: BundleParts,
    laid_out: LaidOut,
    prepared: PreparedVariants,
    learnt: Learnt,
    to_prove: Collection[str] = (),
) -> Report:
    """Return the report without times: content of the bundle.

    Args:
        opened: The request, the model, and the samples.
        parts, laid_out: The bundle.
        prepared: Variants, and profiles without a variant.
        learnt: Feedback of a fleet.
        to_prove: Names of the variants that boards were to prove.
    """
    facts, samples = parts.facts, opened.samples
    return Report(
        name=facts.name,
        version=facts.version,
        release=facts.release,
        created_at=facts.created_at,
        model=_model(opened.source),
        samples=_samples(samples, len(samples.golden.inputs), laid_out.golden.size_bytes),
        variants=tuple(map(_reported, parts.variants, laid_out.variants)),
        refused=tuple(map(_untimed_refusal, prepared.refused)),
        notes=(*samples.notes, *learnt.notes),
        warnings=(
            *_describe_unfinished(prepared),
            *_describe_unproven(prepared, to_prove),
            *samples.doubts,
            *_describe_weak(prepared),
        ),
        tools=facts.tools,
        evidence=learnt.evidence,
        proposals=learnt.proposals,
        responses=tuple(respond(learnt, samples.reference, samples.captured.count, facts.name)),
    )


def _describe_unfinished(prepared: PreparedVariants) -> Iterator[str]:
    """Yield the profiles that the time of the build did not allow, if any."""
    if names := [entry.profile for entry in prepared.refused if entry.is_unfinished]:
        yield (
            f"not built: {', '.join(names)}. The time of the build (--budget) ended. The same "
            "command with a longer --budget and --force continues and replaces this bundle."
        )


def _describe_unproven(prepared: PreparedVariants, to_prove: Collection[str]) -> Iterator[str]:
    """Yield the variants that the time of the build did not allow boards to prove, if any."""
    names = [it.name for it in prepared.variants if it.name in to_prove and not it.boards]
    if names:
        yield (
            f"not proven on a board: {', '.join(names)}. The time of the build (--budget) ended: "
            "accuracy and placement are not from the board. Give a longer --budget."
        )


def _describe_weak(prepared: PreparedVariants) -> Iterator[str]:
    """Yield each reason for a weak verdict, with its variants."""
    variants: dict[str, list[str]] = {}
    for variant in prepared.variants:
        if variant.accuracy.weak:
            variants.setdefault(variant.accuracy.weak, []).append(variant.name)
    for because, names in variants.items():
        yield f"the verdict on {', '.join(names)} is weak: {because}."


def compose_refusal(
    opened: OpenedBuild, refused: tuple[RefusedProfile, ...], notes: tuple[str, ...]
) -> Report:
    """Return the report of a build without a bundle: attempts, and missed limits."""
    request = opened.request
    return Report(
        name=request.name,
        version=request.version,
        release=request.release,
        model=_model(opened.source),
        samples=_samples(opened.samples, 0, 0),
        refused=refused,
        notes=(*opened.samples.notes, *notes),
        warnings=opened.samples.doubts,
        tools=tool_versions(),
    )


def add_times(report: Report, prepared: PreparedVariants, rehearsal: Rehearsal) -> Report:
    """Return the report next to the bundle: with times, and with the rehearsal's results."""
    timed = {variant.name: variant for variant in prepared.variants}
    return replace(
        report,
        choice=rehearsal.choice.because,
        variants=tuple(
            replace(
                variant,
                notes=(*variant.notes, *timed[variant.name].timed_notes),
                attempts=timed[variant.name].attempts,
                timing=timed[variant.name].timing,
                rehearsal=rehearsal.by_variant[variant.name],
                boards=rehearsal.with_probes(variant.name, timed[variant.name].boards),
            )
            for variant in report.variants
        ),
        refused=prepared.refused,
    )


def _model(source: SourceModel) -> ModelReport:
    return ModelReport(
        file=source.path.name,
        sha256=source.sha256,
        size_bytes=source.size_bytes,
        opset=source.opset,
        inputs=tuple(map(str, source.inputs)),
        outputs=tuple(map(str, source.outputs)),
        node_count=len(source.model.graph.node),
    )


def _samples(build_samples: BuildSamples, golden_count: int, golden_bytes: int) -> SamplesReport:
    return SamplesReport(
        calibration_count=build_samples.split.calibration.count,
        search_count=build_samples.split.search.count,
        held_out_count=build_samples.split.held_out.count,
        golden_count=golden_count,
        golden_bytes=golden_bytes,
        is_random=build_samples.opened.is_random,
        captured_count=build_samples.captured.count,
        captured_sha256=build_samples.captured.sha256,
        preprocessing=tuple(map(str, build_samples.input_values)),
        series_steps=build_samples.split.held_out.steps,
    )


def _reported(prepared: PreparedVariant, variant: Variant) -> VariantReport:
    files = reported_files(variant.facts.files)
    told = VariantReport(**prepared.told_of(VariantReport) | {"files": files, "timing": None})
    size_bytes = sum(file.size_bytes for file in files)
    boards = tuple(board.without_times() for board in prepared.boards)
    return replace(told, size_bytes=size_bytes, attempts=_untimed(prepared.attempts), boards=boards)


def _untimed(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    return tuple(replace(attempt, latency_ms=None) for attempt in attempts)


def _untimed_refusal(refused: RefusedProfile) -> RefusedProfile:
    best = refused.best
    if best is None:
        return refused
    boards = tuple(board.without_times() for board in best.boards)
    untimed = replace(best, attempts=_untimed(best.attempts), boards=boards)
    return replace(refused, best=untimed)


def report_refusals(
    opened: OpenedBuild, refused: tuple[RefusedProfile, ...], notes: tuple[str, ...]
) -> str:
    """Write the report of a build that makes no bundle, and state where; "" if nothing is known.

    The report has the bundle's report path, or lies next to the report of an older bundle.
    """
    if not any(entry.best for entry in refused):
        return ""
    report = compose_refusal(opened, refused, notes)
    report = name_in_report(report, own_names(opened.source.model.graph))
    output = opened.request.output
    html, _ = write_report(report, output, "refused." if output.exists() else "")
    return f"{html} tells what was tried"


def write_report(report: Report, output: Path, prefix: str = "") -> tuple[Path, Path]:
    """Write a report next to a bundle, and state where: the page and the JSON."""
    html, json = (
        output.with_name(f"{output.name}.{prefix}report.{suffix}") for suffix in ("html", "json")
    )
    write_file(html, render_report(report).encode())
    write_file(json, encode_report(report))
    return html, json


def refusal_error(
    profile: Profile, error: EdgepackError, report: str, *, several: bool
) -> BuildError:
    """Return a profile's refusal as the build's: the error names the profile, the report and the
    alternative.
    """
    problem = error.problem
    if isinstance(error, BoardError):
        problem = f"profile {profile.name!r} was not proven: {problem}"
    elif profile.name not in problem:
        problem = f"profile {profile.name!r} refuses: {problem}"
    hint = "--keep-going builds the other profiles" if several else ""
    remedy = "; or: ".join(part for part in (error.remedy, hint) if part)
    return BuildError(problem, found_in=error.found_in, remedy=join_remedies(remedy, report))


def join_remedies(remedy: str, report: str) -> str | None:
    """Return a remedy, and where to read more; None where there is neither."""
    return ". ".join(part for part in (remedy, report) if part) or None
