"""Puts a build's report together from what each of its steps yielded."""

from dataclasses import dataclass

import msgspec

from edgepack.bundle.golden import Golden
from edgepack.packager.bundling.assemble import BundleParts, LaidOut, reported_files
from edgepack.packager.bundling.rehearse import Rehearsal
from edgepack.packager.profile.reading import describe_passes
from edgepack.packager.profile.schema import Profile
from edgepack.packager.reports.report import (
    ModelReport,
    RefusedProfile,
    Report,
    SamplesReport,
    Timing,
    TriedAttempt,
    VariantReport,
)
from edgepack.packager.samples.files import OpenedSamples
from edgepack.packager.samples.sequence import SampleSplit
from edgepack.packager.source.model import SourceModel
from edgepack.packager.variant import PreparedVariant


@dataclass(frozen=True, kw_only=True)
class Material:
    """Samples, opened and divided, and what a person should know of them and of the model."""

    opened: OpenedSamples
    split: SampleSplit
    notes: tuple[str, ...]


def compose_report(
    parts: BundleParts,
    laid_out: LaidOut,
    source: SourceModel,
    material: Material,
    golden: Golden,
    profiles: tuple[Profile, ...],
    refused: tuple[RefusedProfile, ...],
) -> Report:
    """The report without times: what goes into the bundle."""
    recipes = {profile.name: tuple(describe_passes(profile)) for profile in profiles}
    files = {variant.name: reported_files(variant) for variant in laid_out.variants}
    return Report(
        name=parts.name,
        version=parts.version,
        release=parts.release,
        created_at=parts.created_at,
        model=ModelReport(
            file=source.path.name,
            sha256=source.sha256,
            size_bytes=source.size_bytes,
            opset=source.opset,
            inputs=tuple(map(str, source.inputs)),
            outputs=tuple(map(str, source.outputs)),
            node_count=len(source.model.graph.node),
        ),
        samples=SamplesReport(
            calibration_count=material.split.calibration.count,
            search_count=material.split.search.count,
            held_out_count=material.split.held_out.count,
            golden_count=len(golden.inputs),
            golden_bytes=laid_out.golden.size_bytes,
            is_random=material.opened.is_random,
        ),
        variants=tuple(
            VariantReport(
                name=variant.name,
                profile=variant.profile,
                precision=variant.precision,
                provider=variant.provider,
                device=variant.device,
                size_bytes=sum(file.size_bytes for file in files[variant.name]),
                degraded=variant.degraded,
                accuracy=variant.accuracy,
                placement=variant.placement,
                requires=variant.requires,
                toolchain=variant.toolchain,
                tolerances=variant.tolerances,
                recipe=recipes.get(variant.profile, ()),
                attempts=tuple(
                    TriedAttempt(
                        what=attempt.what,
                        accuracy=attempt.accuracy,
                        size_bytes=attempt.size_bytes,
                        because=attempt.because,
                    )
                    for attempt in variant.attempts
                ),
                notes=variant.notes,
                files=files[variant.name],
            )
            for variant in parts.variants
        ),
        refused=refused,
        notes=material.notes,
        tools=dict(sorted(parts.tools.items())),
    )


def add_times(
    report: Report, variants: tuple[PreparedVariant, ...], rehearsal: Rehearsal
) -> Report:
    """The report beside the bundle: with times, and with what the rehearsal saw."""
    timings = {
        variant.name: Timing(
            latency_ms=variant.latency_ms, float_latency_ms=variant.float_latency_ms
        )
        for variant in variants
    }
    timed_notes = {variant.name: variant.timed_notes for variant in variants}
    return msgspec.structs.replace(
        report,
        choice=rehearsal.choice.because,
        variants=tuple(
            msgspec.structs.replace(
                variant,
                notes=(*variant.notes, *timed_notes[variant.name]),
                timing=timings[variant.name],
                rehearsal=rehearsal.by_variant[variant.name],
            )
            for variant in report.variants
        ),
    )
