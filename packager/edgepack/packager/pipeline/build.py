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

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from edgepack.bundle.manifest import BundleFacts, Generation
from edgepack.errors import located
from edgepack.packager.boards.reach import Boards
from edgepack.packager.bundling.assemble import BundleParts, LaidOut, lay_out
from edgepack.packager.bundling.deltas import write_deltas
from edgepack.packager.bundling.output import disk_error, work_folder
from edgepack.packager.bundling.prepared_variant import PreparedVariants
from edgepack.packager.bundling.rehearse import RehearsalError, rehearse
from edgepack.packager.config.inputs import described_inputs
from edgepack.packager.graph.token_tables import find_token_counts
from edgepack.packager.pipeline.adapter_build import build_adapter
from edgepack.packager.pipeline.build_samples import (
    BuildSamples,
    OpenedBuild,
    add_reference,
    open_build_samples,
)
from edgepack.packager.pipeline.check_request import CheckedRequest, check_request
from edgepack.packager.pipeline.open_model import add_folder_facts, open_model, wanted_inputs
from edgepack.packager.pipeline.publication import BuildResult, Closing, close_build
from edgepack.packager.pipeline.refusal import TimeEndedError, report_refusal
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.pipeline.variants import prepare_variants
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.deadline import Deadline, OutOfTimeError
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.runtime.tool_versions import tool_versions
from edgepack.packager.source.texts import TextSource
from edgepack.tasks.inputs import MAX_NAME, DescribedInput, TokenInput


def build_bundle(
    request: BuildRequest, progress: Progress, clock: Callable[[], float] = time.monotonic
) -> BuildResult:
    """Run the steps of a build; see above.

    Args:
        request: Request for the build.
        progress: Called with the progress.
        clock: Returns seconds, which `budget_s` bounds; only differences count.

    Raises:
        EdgepackError: Any reason for a failed build.
    """
    try:
        if request.base is not None:
            return build_adapter(request, progress)
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
            samples = add_reference(samples, request, source)
        opened = OpenedBuild(request=request, source=source, samples=samples)
        prepared = prepare_variants(opened, checked, work, process, progress)  # 4
        folder = work / "bundle"
        closing = Closing(
            key=checked.key,
            recipients=checked.recipients,
            rehearse=lambda signed: rehearse(  # 6
                signed,
                checked.key.public_key(),
                process,
                progress,
                checked.toolchains,
                checked.deadline,
                checked.boards,
            ),
            learnt=checked.learnt,
            to_prove=checked.boards,
        )
        while True:
            progress(BuildStep(what="writing the bundle"))
            parts = _make_parts(opened, prepared)
            folder.mkdir()
            laid_out = lay_out(folder, parts)  # 5
            laid_out = _add_deltas(folder, request, laid_out, progress, checked.deadline)
            try:
                return close_build(  # 5 to 8
                    opened, parts, laid_out, prepared, closing, folder, progress
                )
            except RehearsalError as error:
                prepared = _leave_out(error, prepared, request, progress)
                shutil.rmtree(folder)


def _leave_out(
    error: RehearsalError, prepared: PreparedVariants, request: BuildRequest, progress: Progress
) -> PreparedVariants:
    """Return the variants without one that failed its rehearsal, if others are to be published.

    Raises:
        RehearsalError: The request does not keep going, or no variant is left.
    """
    (failed,) = (one for one in prepared.variants if one.name == error.variant)
    left = tuple(one for one in prepared.variants if one is not failed)
    if not (request.keep_going and left):
        raise error
    progress(BuildStep(what="left out", profile=failed.profile, outcome=error.problem))
    refused = (*prepared.refused, report_refusal(failed.profile, error))
    return replace(prepared, variants=left, refused=refused)


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
    request, samples, encoder = opened.request, opened.samples, opened.source.encoder
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
                inputs=_described_inputs(opened),
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
        encoder=encoder,
        golden_texts=(
            encoder.golden_texts(opened.source.inputs, samples.float_source.run_unknown)
            if encoder is not None
            else ()
        ),
    )


def _described_inputs(opened: OpenedBuild) -> tuple[DescribedInput, ...]:
    """Return the inputs that are known: declared, an encoder's input of texts, or tokens of a table
    in the graph.
    """
    declared = described_inputs(
        wanted_inputs(opened.source, opened.request),
        from_pictures=opened.samples.split.held_out.pictures_of is not None,
    )
    encoder = opened.source.encoder
    found = (*((encoder.described,) if encoder else ()), *declared)
    names = {one.name for one in found}
    counts = find_token_counts(opened.source.model.graph)
    names |= counts.keys() - {one.name for one in opened.source.inputs}
    tokens = (
        TokenInput(name=name, vocabulary=rows)
        for name, rows in counts.items()
        if name not in names and len(name) <= MAX_NAME
    )
    return (*found, *tokens)


def _generation(texts: TextSource | None, samples: BuildSamples) -> Generation | None:
    if texts is None:
        return None
    return Generation(
        context=texts.context,
        vocabulary=texts.vocabulary,
        cache_bytes_per_token=texts.cache_bytes_per_token,
        prompts=len(samples.golden.inputs) if samples.split.held_out.are_texts else 0,
        adapters=texts.places,
    )
