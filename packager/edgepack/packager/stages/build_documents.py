"""Compose the report and the record of a pipeline's build."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from edgepack.bundle.manifest import Variant
from edgepack.packager.bundling.assemble import BundleParts, LaidOut
from edgepack.packager.bundling.rehearse import Rehearsal
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.provenance.record import BuildRecord, Material, SampleSet
from edgepack.packager.reports.report import (
    ModelReport,
    RefusedProfile,
    Report,
    SamplesReport,
    VariantReport,
    reported_files,
)
from edgepack.packager.stages import speech
from edgepack.packager.stages.end_gate import JudgedVariant
from edgepack.packager.stages.graph_facts import describe_graphs
from edgepack.packager.stages.pipeline_file import PipelineSource
from edgepack.packager.stages.pipeline_samples import PipelineSamples, digest_samples
from edgepack.text import counted


def digest_source(source: PipelineSource) -> str:
    """Return the sha256 of the pipeline's file and of the models that it names."""
    digest = hashlib.sha256(source.path.read_bytes())
    for file in _given_files(source):
        digest.update(_digest_file(file).encode())
    return digest.hexdigest()


def _given_files(source: PipelineSource) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(stage.given for stage in source.stages))


def _settings_of(source: PipelineSource) -> tuple[Path, ...]:
    """Return the files that state how sounds and texts are prepared; none for other pipelines."""
    if source.texts is None:
        return ()
    found = (source.path.parent / name for name in speech.FILES)
    return tuple(path for path in found if path.is_file())


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def compose_report(
    source: PipelineSource,
    samples: PipelineSamples,
    parts: BundleParts,
    laid_out: LaidOut,
    judged: Sequence[JudgedVariant],
    refused: tuple[RefusedProfile, ...],
) -> Report:
    """Compose the report without the times of the rehearsal."""
    facts = parts.facts
    golden_count = len(parts.golden.inputs)
    wiring = source.wiring
    notes = [
        f"The pipeline has {len(source.stages)} stages: "
        f"{', '.join(stage.name for stage in source.stages)}. Accuracy is measured from its inputs "
        f"to its outputs on {len(samples.held_out)} held-out samples.",
        *source.notes,
    ]
    if parts.pictures:
        notes.append(
            f"The bundle carries {counted(len(parts.pictures), 'sound')} of the golden samples as "
            "given. Devices prove their preparation with these. --leave-out-pictures leaves them "
            "out."
        )
    return Report(
        name=facts.name,
        version=facts.version,
        release=facts.release,
        created_at=facts.created_at,
        model=ModelReport(
            file=source.path.name,
            sha256=facts.source_sha256,
            **describe_graphs(stage.path for stage in source.stages),
            inputs=tuple(f"{one.name} {one.dtype} {list(one.shape)}" for one in wiring.inputs),
            outputs=wiring.outputs,
        ),
        samples=SamplesReport(
            calibration_count=len(samples.calibration),
            search_count=0,
            held_out_count=len(samples.held_out),
            golden_count=golden_count,
            golden_bytes=laid_out.golden.size_bytes,
            is_random=False,
        ),
        variants=tuple(
            _report(one, variant) for one, variant in zip(judged, laid_out.variants, strict=True)
        ),
        refused=refused,
        notes=tuple(notes),
        warnings=tuple(
            f"the verdict on {one.plan.name} is weak: {one.facts.accuracy.weak}."
            for one in judged
            if one.facts.accuracy.weak
        ),
        tools=facts.tools,
    )


def _report(judged: JudgedVariant, variant: Variant) -> VariantReport:
    facts = variant.facts
    files = reported_files(facts.files)
    return VariantReport(
        name=variant.name,
        profile=facts.profile,
        profile_sha256=facts.profile_sha256,
        provider=variant.provider,
        device=variant.device,
        degraded=facts.degraded,
        requires=facts.requires,
        toolchain=facts.toolchain,
        tolerances=facts.tolerances,
        agreements=facts.agreements,
        recipe=tuple(f"{stage}: {name}" for stage, name in judged.stages.items()),
        files=files,
        precision=facts.precision,
        size_bytes=sum({file.sha256: file.size_bytes for file in files}.values()),
        accuracy=facts.accuracy,
        placement=facts.placement,
        attempts=(),
        notes=judged.notes,
    )


def compose_record(
    source: PipelineSource,
    request: BuildRequest,
    samples: PipelineSamples,
    parts: BundleParts,
    laid_out: LaidOut,
    report: Report,
) -> BuildRecord:
    """Compose the record of the build, from which bill and provenance are written."""
    return BuildRecord(
        facts=parts.facts,
        variants=laid_out.variants,
        model=report.model,
        about=request.about,
        datasets=request.datasets,
        samples=(
            SampleSet(
                used_for="calibration",
                count=len(samples.calibration),
                sha256=digest_samples(samples.calibration),
                is_random=False,
            ),
            SampleSet(
                used_for="evaluation",
                count=len(samples.held_out),
                sha256=digest_samples(samples.held_out, samples.answers),
                is_random=False,
            ),
        ),
        assets=laid_out.assets,
        materials=tuple(
            Material(name=path.name, sha256=_digest_file(path))
            for path in (*_given_files(source), *_settings_of(source))
        ),
        external={
            "model": source.path.name,
            "name": request.name,
            "version": request.version,
            "release": request.release,
            "profiles": [Path(name).name for name in request.profiles],
            "calibration": Path(str(request.calibration)).name,
        },
        builder_id=request.builder_id,
        host={"machine": platform.machine(), "system": platform.system()},
    )


def add_times(report: Report, judged: Sequence[JudgedVariant], rehearsal: Rehearsal) -> Report:
    """Add the choice and the times of the rehearsal to the report."""
    by_name: Mapping[str, JudgedVariant] = {one.plan.name: one for one in judged}
    return replace(
        report,
        choice=rehearsal.choice.because,
        variants=tuple(
            replace(
                variant,
                notes=(*variant.notes, *by_name[variant.name].timed_notes),
                rehearsal=rehearsal.by_variant[variant.name],
            )
            for variant in report.variants
        ),
    )
