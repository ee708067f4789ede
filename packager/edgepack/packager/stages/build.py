"""`edgepack build pipeline.toml`: from several graphs to one signed and rehearsed bundle.

1. Read the pipeline; check its wiring, its graphs and the tensors between these.
2. Run the float pipeline on all samples: expected outputs, and each graph's samples.
3. Build each stage for its profiles, with its part of the budget.
4. Judge each variant at the end of the pipeline, on held-out samples. Where the budget does not
   hold, the stage that costs most becomes float, until the budget holds. Where the time of the
   build ends, finished variants are published, and the others are named.
5. Write the bundle, sign and rehearse it, and move it to its place, as for a single model.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from edgepack.bundle.drift import draw_features, sketch_outputs
from edgepack.bundle.golden import Golden
from edgepack.bundle.manifest import (
    BundleFacts,
    Pipeline,
    PipelineVariant,
    Variant,
    join_stages,
)
from edgepack.bundle.metadata import MAX_FEATURES, MAX_TENSOR_NAME, Feature
from edgepack.bundle.recipients import load_recipients
from edgepack.bundle.signing_keys import load_signing_key
from edgepack.errors import BuildError, DeviceError, ProfileError
from edgepack.packager.bundling.assemble import (
    BundleParts,
    LaidOut,
    encrypt_files,
    finish,
    lay_out,
)
from edgepack.packager.bundling.output import check_output, disk_error, publish, work_folder
from edgepack.packager.bundling.rehearse import rehearse
from edgepack.packager.bundling.shipped_firmware import check_firmware, check_shipped_hooks
from edgepack.packager.pipeline.publication import BuildResult
from edgepack.packager.pipeline.refusal import TimeEndedError, report_refusal
from edgepack.packager.pipeline.report_composition import write_report
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.provenance.bill import compose_bill
from edgepack.packager.provenance.minimum_elements import count_elements
from edgepack.packager.provenance.record import BuildRecord
from edgepack.packager.reports.report import RefusedProfile, Report
from edgepack.packager.runtime.deadline import Deadline, OutOfTimeError
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.runtime.tool_versions import tool_versions
from edgepack.packager.samples.golden_selection import (
    MOST_SAMPLES,
    SIZE_LIMIT_BYTES,
    choose_sounds,
)
from edgepack.packager.stages.build_documents import (
    add_times,
    compose_record,
    compose_report,
    digest_source,
)
from edgepack.packager.stages.end_gate import EndGate, JudgedVariant
from edgepack.packager.stages.float_pipeline import FloatPipeline
from edgepack.packager.stages.pipeline_file import PipelineSource, read_pipeline
from edgepack.packager.stages.pipeline_samples import PipelineSamples, open_pipeline_samples
from edgepack.packager.stages.plans import VariantPlan, plan_variants
from edgepack.packager.stages.shared_weights import share_weights
from edgepack.packager.stages.stage_variants import StageBuilder
from edgepack.packager.tasks.transcript.answers import encode_answers
from edgepack.packager.tasks.transcript.vocabulary import with_words
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import ModelDescription, TaskOutputs
from edgepack.tasks.inputs import PageInput
from edgepack.tasks.table import task_of
from edgepack.tasks.transcript.measure import NAME as TRANSCRIPT

_LEAST_GOLDEN = 2

_NOT_YET = (
    "metric",
    "labels",
    "searched",
    "values",
    "shapes",
    "delta_from",
    "prove",
    "toolchains",
    "feedback",
    "captured",
    "plain_runtimes",
    "context",
    "adapters",
    "base",
)
"""Options of a build that a pipeline does not take."""


def build_pipeline(
    path: Path,
    request: BuildRequest,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> BuildResult:
    """Build, sign and rehearse the bundle of a pipeline.

    Args:
        path: The pipeline's file.
        request: Request for the build; its profiles are for all stages.
        progress: Called with the progress.
        clock: Returns seconds, which `budget_s` bounds; only differences count.

    Raises:
        EdgepackError: Any reason for a failed build; nothing is left behind.
    """
    try:
        return _build(path, request, progress, Deadline(request.budget_s, clock))
    except OSError as error:
        raise disk_error(error, request.output) from error
    except OutOfTimeError as error:
        raise TimeEndedError from error


def _build(
    path: Path, request: BuildRequest, progress: Progress, deadline: Deadline
) -> BuildResult:
    _check_options(request)
    check_output(request.output, replace=request.replace)
    key = load_signing_key(request.key)
    recipients = tuple(key for path in request.encrypt_to for key in load_recipients(path))
    if request.hooks is not None:
        check_shipped_hooks(request.hooks)
    check_firmware(request.firmware)
    with work_folder(request.output) as work, ProviderProcess() as process:
        source = read_pipeline(path, work)  # 1
        plans = plan_variants(source, request.profiles)
        floats = FloatPipeline(source)
        samples = open_pipeline_samples(source, request.calibration, request.evaluation)
        watched = deadline.watch(progress)
        floats.check_caches(samples.calibration)
        expected = floats.run(samples.held_out, "reading held-out samples", watched)  # 2
        source = replace(source, part=_settle(source, expected))
        builder = StageBuilder(
            *(source, request, floats, samples, work / "stages", progress, deadline),
            count=len({pair for plan in plans for pair in plan.profiles.items()}),
        )
        folder = work / "bundle"
        folder.mkdir()
        gate = EndGate(
            *(source, samples.held_out, expected, _read_answers(source, samples, expected)),
            *(builder, folder, work, deadline),
        )
        judged, refused = _judge_all(gate, plans, request, progress, deadline)  # 3, 4
        gate.remove_unused(judged)
        judged = _share(folder, judged)
        floats.session.close()
        progress(BuildStep(what="writing the bundle"))  # 5
        parts, laid_out = _lay_out(folder, source, request, samples, expected, judged)

        def sign(parts: BundleParts, laid_out: LaidOut) -> tuple[str, Report, BuildRecord]:
            report = compose_report(source, samples, parts, laid_out, judged, refused)
            record = compose_record(source, request, samples, parts, laid_out, report)
            return finish(folder, parts, laid_out, report, record, key), report, record

        digest, report, record = sign(parts, laid_out)
        rehearsal = rehearse(folder, key.public_key(), process, progress)
        if recipients:
            progress(BuildStep(what="encrypting the bundle"))
            digest, report, record = sign(*encrypt_files(folder, parts, laid_out, recipients))
        publish(folder, request.output, work)
    timed = add_times(report, judged, rehearsal)
    html, json = write_report(timed, request.output)
    return BuildResult(
        output=request.output,
        digest=digest,
        report=timed,
        report_html=html,
        report_json=json,
        unsaid=count_elements(compose_bill(record))[1],
    )


def _settle(source: PipelineSource, expected: Sequence[Outputs]) -> TaskOutputs:
    """Return the outputs with what the float pipeline's values, and the tokenizer, tell of them."""
    part, own = task_of(source.part).settle(source.part, expected), source.texts
    if own is None or part.task != TRANSCRIPT:
        return part
    return with_words(part, own.described, own.tokenizer.read_bytes(), expected)


def _read_answers(
    source: PipelineSource, samples: PipelineSamples, expected: Sequence[Outputs]
) -> tuple[Outputs, ...]:
    """Return the user's answers as outputs of the pipeline; () without answers."""
    own = source.texts
    if own is None or not samples.answers or source.part.task != TRANSCRIPT:
        return ()
    vocabulary = own.described.vocabulary
    return encode_answers(
        source.part, own.tokenizer.read_bytes(), vocabulary, samples.answers, expected
    )


def _check_options(request: BuildRequest) -> None:
    given = [name for name in _NOT_YET if getattr(request, name, None)]
    if given:
        raise BuildError(
            f"a pipeline is built without the options {', '.join(given)}",
            found_in=str(request.model),
            remedy="leave these out; a stage's shapes and profiles belong into the pipeline's file",
        )


def _judge_all(
    gate: EndGate,
    plans: Sequence[VariantPlan],
    request: BuildRequest,
    progress: Progress,
    deadline: Deadline,
) -> tuple[tuple[JudgedVariant, ...], tuple[RefusedProfile, ...]]:
    """Return the variants that hold the budget, and those that are refused or not finished.

    Raises:
        BuildError: A variant is refused without `keep_going`, or all variants are.
    """
    judged: list[JudgedVariant] = []
    refused: list[RefusedProfile] = []
    for plan in plans:
        try:
            judged.append(_judge(gate, plan, progress, deadline))
        except (BuildError, DeviceError, ProfileError) as error:
            is_kept = judged and isinstance(error, TimeEndedError)  # what is finished is not lost
            if not (request.keep_going or is_kept):
                raise
            refused.append(report_refusal(plan.name, error))
    if not judged:
        reasons = "; ".join(f"{one.profile}: {one.problem}" for one in refused)
        raise BuildError(
            f"no variant of the pipeline could be built: {reasons}", remedy=refused[0].remedy
        )
    return tuple(judged), tuple(refused)


def _judge(
    gate: EndGate, plan: VariantPlan, progress: Progress, deadline: Deadline
) -> JudgedVariant:
    try:
        deadline.check()
        judged = gate.judge(plan, progress)
    except OutOfTimeError as error:
        raise TimeEndedError from error
    progress(
        BuildStep(
            what="judged from input to output", profile=plan.name, outcome=judged.agreement.words
        )
    )
    return judged


def _share(folder: Path, judged: Sequence[JudgedVariant]) -> tuple[JudgedVariant, ...]:
    """Store weights once that several stages have; return the variants with their files."""
    graphs = {part.folder: part for one in judged for part in one.parts}
    shared = {part.folder: part for part in share_weights(folder, tuple(graphs.values()))}
    return tuple(
        replace(one, parts=tuple(shared[part.folder] for part in one.parts)) for one in judged
    )


def _lay_out(
    folder: Path,
    source: PipelineSource,
    request: BuildRequest,
    samples: PipelineSamples,
    expected: Sequence[Outputs],
    judged: Sequence[JudgedVariant],
) -> tuple[BundleParts, LaidOut]:
    count = _count_golden(samples)
    golden = Golden(inputs=samples.held_out[:count], outputs=tuple(expected[:count]))
    pipeline = Pipeline(
        wiring=source.wiring,
        variants=tuple(
            PipelineVariant(name=one.plan.name, stages=one.stages, facts=one.facts)
            for one in judged
        ),
    )
    graphs: dict[str, dict[str, Variant]] = {}
    for one in judged:
        for part in one.parts:
            graphs.setdefault(part.component, {})[part.name] = part
    joined = join_stages(pipeline, {name: tuple(own.values()) for name, own in graphs.items()})
    picture, own = source.wiring.picture, source.texts
    golden_files = () if request.leave_out_pictures else samples.held_out_files[:count]
    described = (PageInput(name=picture),) if picture else ()
    parts = BundleParts(
        facts=BundleFacts(
            name=request.name,
            version=request.version,
            release=request.release,
            created_at=request.created_at,
            source_sha256=digest_source(source),
            tools=dict(sorted(tool_versions().items())),
            files=(),
            description=ModelDescription(
                parts=(source.part,), inputs=(own.described,) if own else described
            ),
            pipeline=pipeline,
            reference=() if request.encrypt_to else _draw_reference(source, expected),
        ),
        variants=(),
        golden=golden,
        hooks=request.hooks,
        firmware=request.firmware,
        tokenizer=own.tokenizer if own else None,
        pictures=choose_sounds(golden_files),
    )
    return parts, replace(lay_out(folder, parts), variants=joined)


def _draw_reference(source: PipelineSource, expected: Sequence[Outputs]) -> tuple[Feature, ...]:
    """Return features of the float pipeline's results, by which devices measure drift."""
    part = source.part
    found = [sketch for one in expected if (sketch := sketch_outputs(part, one)) is not None]
    if not found or len(part.outputs[0]) > MAX_TENSOR_NAME:
        return ()
    return draw_features(part.outputs[0], found)[:MAX_FEATURES]


def _count_golden(samples: PipelineSamples) -> int:
    """Return how many held-out samples become golden: few and small, two at the least."""
    size, count = 0, 0
    for feeds in samples.held_out[:MOST_SAMPLES]:
        size += sum(one.nbytes for one in feeds.values())
        if size > SIZE_LIMIT_BYTES and count >= _LEAST_GOLDEN:
            break
        count += 1
    return count
