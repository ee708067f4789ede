"""`edgepack build`, from the model file to the signed and rehearsed bundle.

1. Refuse early: output, key, profiles, their toolchains and boards, hooks (`check_request`).
2. Open the model, and reject declarations that do not fit the model (`open_model`).
3. Divide the samples, and choose golden samples (`build_samples`).
4. Prepare a variant for each profile (`variants`). The last one's provider stays loaded until 6, so
   that little else is left to do that takes memory.
5. Lay the bundle out, write its report, its provenance and its bill of materials, and sign the
  bundle.
6. Rehearse the bundle with the agent's own verifier, matching, probe and choice.
7. Encrypt the bundle, if requested, and sign again.
8. Move the bundle to its place in a single step, and put the report with times next to the bundle.

All work lies in a hidden folder next to the output, which is removed in any case: a failed or
interrupted build, or a full disk, leaves existing files unchanged. Only the report of a refused
build stays, and the measurements of a search (`search/journal.py`).
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Unpack

import msgspec
from msgspec.structs import replace

from edgepack.bundle.manifest import BundleFacts, Generation
from edgepack.errors import located
from edgepack.packager.boards.reach import Boards
from edgepack.packager.bundling.assemble import BundleParts, LaidOut, encrypt_files, finish, lay_out
from edgepack.packager.bundling.deltas import write_deltas
from edgepack.packager.bundling.output import disk_error, publish, work_folder
from edgepack.packager.bundling.prepared_variant import PreparedVariants
from edgepack.packager.bundling.rehearse import rehearse
from edgepack.packager.config.inputs import described_inputs
from edgepack.packager.pipeline.build_record import compose_record
from edgepack.packager.pipeline.build_samples import (
    BuildSamples,
    OpenedBuild,
    open_build_samples,
)
from edgepack.packager.pipeline.check_request import CheckedRequest, check_request
from edgepack.packager.pipeline.open_model import add_folder_facts, open_model, wanted_inputs
from edgepack.packager.pipeline.refusal import TimeEndedError
from edgepack.packager.pipeline.report_composition import add_times, compose_report, write_report
from edgepack.packager.pipeline.request import BuildOptions, BuildRequest, derive_request
from edgepack.packager.pipeline.variants import prepare_variants
from edgepack.packager.progress import BuildStep, Progress, silent
from edgepack.packager.provenance.bill import compose_bill
from edgepack.packager.provenance.minimum_elements import count_elements
from edgepack.packager.provenance.record import BuildRecord
from edgepack.packager.reports.own_names import name_in_report, own_names
from edgepack.packager.reports.report import RefusedProfile, Report, VariantReport
from edgepack.packager.runtime.deadline import Deadline, OutOfTimeError
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.runtime.tool_versions import tool_versions
from edgepack.packager.source.texts import TextSource


class BuildResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a build.

    Attributes:
        output: The bundle.
        digest: Its digest, hex.
        report: The report with times.
        report_html, report_json: Paths of the report, next to the bundle.
        unsaid: Names of the G7's minimum elements that the bill of materials lacks.
    """

    output: Path
    digest: str
    report: Report
    report_html: Path
    report_json: Path
    unsaid: tuple[str, ...] = ()

    @property
    def variants(self) -> Mapping[str, VariantReport]:
        """Built variants, by the profile's name."""
        return {variant.profile: variant for variant in self.report.variants}

    @property
    def refused(self) -> tuple[RefusedProfile, ...]:
        """Profiles without a variant: with `keep_going`, or where the time of the build ended."""
        return self.report.refused


def build(
    model: str | Path, *, progress: Progress = silent, **options: Unpack[BuildOptions]
) -> BuildResult:
    """Build, sign and rehearse a bundle with a variant for each profile.

    Example:
        ```python
        from edgepack.packager import build

        result = build(
            "model.onnx",
            profiles=["cpu", "qnn-htp"],
            calibration="samples/",
            key="release.key",
            output="model-1.2.0.edgepack",
        )
        print(result.variants["cpu"].accuracy.value)
        ```

    Args:
        model: The ONNX file, or a local Hugging Face model folder.
        progress: Called with the progress; `print` will do.
        options: See `BuildOptions`.

    Returns:
        Where the bundle lies, its digest, and the report.

    Raises:
        EdgepackError: Any reason for a failed build, in three lines; only the report of the attempt
            is left behind.
    """
    return build_bundle(derive_request(model, options), progress)


def build_bundle(
    request: BuildRequest, progress: Progress, clock: Callable[[], float] = time.monotonic
) -> BuildResult:
    """Run the steps of a build; see above.

    Args:
        request: Request for the build.
        progress: Called with the progress.
        clock: Returns seconds, which `budget_s` bounds; only differences count.

    Raises:
        EdgepackError: See `build`.
    """
    try:
        with Boards(progress) as boards:
            return _build(check_request(request, boards, clock), request, progress)  # 1
    except OSError as error:
        raise disk_error(error, request.output) from error
    except OutOfTimeError as error:
        raise TimeEndedError from error


def _build(checked: CheckedRequest, request: BuildRequest, progress: Progress) -> BuildResult:
    with work_folder(request.output) as work, ProviderProcess() as process:
        declared = located(request.declared_in, ("inputs.", "outputs"))
        with declared, checked.deadline.interrupting():
            watched = checked.deadline.watch(progress)
            source = open_model(request, checked.profiles, work, watched)  # 2
            request, source = add_folder_facts(request, source)
            samples = open_build_samples(request, source, checked.profiles, work, watched)  # 3
        opened = OpenedBuild(request=request, source=source, samples=samples)
        prepared = prepare_variants(opened, checked, work, process, progress)  # 4
        progress(BuildStep(what="writing the bundle"))
        folder = work / "bundle"
        parts = _make_parts(opened, prepared)
        folder.mkdir()
        laid_out = lay_out(folder, parts)  # 5
        laid_out = _add_deltas(folder, request, laid_out, progress, checked.deadline)

        def sign() -> tuple[str, Report, BuildRecord]:
            """Write report and documents, and sign; the report has no times."""
            report = compose_report(
                opened, parts, laid_out, prepared, checked.learnt, checked.boards
            )
            report = name_in_report(report, own_names(source.model.graph))
            record = compose_record(opened, parts, laid_out, report)
            return finish(folder, parts, laid_out, report, record, checked.key), report, record

        digest, report, record = sign()
        public_key = checked.key.public_key()
        rehearsal = rehearse(  # 6
            folder,
            public_key,
            process,
            progress,
            checked.toolchains,
            checked.deadline,
            checked.boards,
        )
        if checked.recipients:
            progress(BuildStep(what="encrypting the bundle"))
            parts, laid_out = encrypt_files(folder, parts, laid_out, checked.recipients)  # 7
            digest, report, record = sign()
        publish(folder, request.output, work)  # 8
    timed = add_times(report, prepared, rehearsal)
    timed = name_in_report(timed, own_names(source.model.graph))
    html, json = write_report(timed, request.output)
    return BuildResult(
        output=request.output,
        digest=digest,
        report=timed,
        report_html=html,
        report_json=json,
        unsaid=count_elements(compose_bill(record))[1],
    )


def _add_deltas(
    folder: Path,
    request: BuildRequest,
    laid_out: LaidOut,
    progress: Progress,
    deadline: Deadline,
) -> LaidOut:
    if not request.delta_from:
        return laid_out
    deltas = []
    try:
        with deadline.interrupting():
            for older in request.delta_from:
                progress(BuildStep(what=f"comparing with {older.name}"))
                for written in write_deltas(folder, request.name, laid_out.variants, older):
                    progress(BuildStep(what="delta", outcome=str(written)))
                    deltas.append(written.file)
    except OutOfTimeError:
        progress(BuildStep(what="delta", outcome="no time was left for more of them"))
    return replace(laid_out, deltas=tuple(file for file in deltas if file is not None))


def _make_parts(opened: OpenedBuild, prepared: PreparedVariants) -> BundleParts:
    request, samples = opened.request, opened.samples
    return BundleParts(
        facts=BundleFacts(
            name=request.name,
            version=request.version,
            release=request.release,
            created_at=request.created_at,
            source_sha256=opened.source.sha256,
            tools=dict(sorted(tool_versions().items())),
            files=(),
            description=replace(
                samples.split.held_out.description.without(opened.source.watched),
                inputs=described_inputs(
                    wanted_inputs(opened.source, request),
                    from_pictures=samples.split.held_out.pictures_of is not None,
                ),
            ),
            reference=samples.reference,
            generation=_generation(opened.source.texts, samples),
        ),
        variants=prepared.variants,
        golden=samples.golden,
        hooks=request.hooks,
        firmware=request.firmware,
        pictures=samples.pictures,
        texts=opened.source.texts,
    )


def _generation(texts: TextSource | None, samples: BuildSamples) -> Generation | None:
    if texts is None:
        return None
    return Generation(
        context=texts.context,
        vocabulary=texts.vocabulary,
        cache_bytes_per_token=texts.cache_bytes_per_token,
        prompts=len(samples.golden.inputs) if samples.split.held_out.are_texts else 0,
    )
