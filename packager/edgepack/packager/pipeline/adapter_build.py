"""`edgepack build --adapter`: from a PEFT folder to a signed release of an adapter.

1. Read the base bundle: its places for adapters, its variants, its digest.
2. Read the adapter, and compare its sizes with the places.
3. Make the float reference: the float base with the adapter inside. The float base is MODEL if
   given, which must be the base's own source; else the base's float variant; else its first
   variant, and verdicts are weak.
4. Measure each variant of the base with the adapter against the reference, on prompts with answers,
   and against the same variant without the adapter.
5. Write the bundle: of each variant the adapter's file. Report, provenance and signature are those
   of every build.
6. Rehearse with the base, as a device does.
"""

import math
import shutil
from pathlib import Path

import msgspec
import onnx
from msgspec.structs import replace

from edgepack.agent.runtime.bases import BaseRelease
from edgepack.agent.runtime.opening import settings_of
from edgepack.bundle.adapters import ADAPTER_FILE, AdapterFacts, AdapterPlaces
from edgepack.bundle.chunks import open_regular
from edgepack.bundle.encrypted_files import decrypt_stream
from edgepack.bundle.forms import digest_of_folder, open_bundle, read_manifest
from edgepack.bundle.generation import GENAI_CONFIG
from edgepack.bundle.keys import load_private_key
from edgepack.bundle.manifest import (
    MANIFEST_FILE,
    BundleFacts,
    Encryption,
    Manifest,
    Variant,
    encode_manifest,
)
from edgepack.bundle.recipients import load_recipients, open_content_key
from edgepack.bundle.signing_keys import load_signing_key
from edgepack.errors import BuildError, DeviceError
from edgepack.number_format import format_metric
from edgepack.packager.bundling.adapter_file import write_adapter
from edgepack.packager.bundling.assemble import BundleParts, lay_out
from edgepack.packager.bundling.output import check_output, work_folder
from edgepack.packager.bundling.prepared_variant import PreparedVariant, PreparedVariants
from edgepack.packager.bundling.rehearse import rehearse
from edgepack.packager.gates.texts import TextReference
from edgepack.packager.gates.tolerances import derive_agreements, derive_tolerances
from edgepack.packager.gates.verdict_notes import describe_verdict
from edgepack.packager.graph.adapter_branches import add_branches, fill_branches
from edgepack.packager.graph.model_files import load_model, save_model
from edgepack.packager.pipeline.build_samples import OpenedBuild, add_reference, open_build_samples
from edgepack.packager.pipeline.holdout_verdict import judge_on_holdout
from edgepack.packager.pipeline.open_model import declare
from edgepack.packager.pipeline.publication import BuildResult, Closing, close_build
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.pipeline.selection import EvaluationInputs
from edgepack.packager.pipeline.variant_facts import accuracy_of
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.progress import BuildStep, Progress, for_profile
from edgepack.packager.reports.reasons import FLOAT_PRECISION
from edgepack.packager.runtime.model_run import Run, open_on_provider
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.runtime.tool_versions import tool_versions
from edgepack.packager.samples.golden_selection import MOST_SAMPLES
from edgepack.packager.samples.texts import are_prompts
from edgepack.packager.source.adapters import SourceAdapter, read_adapter_folder
from edgepack.packager.source.decoders.wiring import describe_texts, read_document
from edgepack.packager.source.huggingface.folder import open_source
from edgepack.packager.source.model import SourceModel, load_source
from edgepack.tasks.details import ADAPTER_RATIO, FLOAT_PERPLEXITY, PERPLEXITY_RATIO, bounded
from edgepack.tasks.intervals import ratio_bounds

_PROFILE = "cpu-int4"
"""Its budgets decide: budgets of texts are those of every profile that edgepack ships."""


_ADAPTER_RUNTIME = ">=1.20"
"""The first release that reads the format of adapters."""


class _Base(msgspec.Struct, frozen=True, kw_only=True):
    """Base of an adapter.

    Attributes:
        folder: Its unpacked bundle.
        manifest: Its manifest.
        digest: Root digest, hex.
        places: Places for adapters.
    """

    folder: Path
    manifest: Manifest
    digest: str
    places: AdapterPlaces

    @property
    def words(self) -> str:
        """Name and version."""
        return f"{self.manifest.facts.name} {self.manifest.facts.version}"

    def model_file(self, variant: Variant) -> Path:
        """Return the model's file of a variant."""
        return self.folder / variant.folder / variant.model_file


def build_adapter(request: BuildRequest, progress: Progress) -> BuildResult:
    """Run the steps; see above.

    Args:
        request: Request for the build; its model is the folder of the adapter.
        progress: Called with the progress.

    Raises:
        EdgepackError: The first reason for a failed build.
    """
    _check_prompts(request)
    check_output(request.output, replace=request.replace)
    key = load_signing_key(request.key)
    recipients = tuple(key for path in request.encrypt_to for key in load_recipients(path))
    with (
        open_bundle(request.base or Path()) as folder,
        work_folder(request.output) as work,
        ProviderProcess() as process,
    ):
        base = _read_base(folder, request, work)  # 1
        adapter = read_adapter_folder(request.model, base.places, base.words)  # 2
        request = replace(request, profiles=tuple(one.name for one in base.manifest.variants))
        source, weak = _open_reference(request, base, adapter, work, progress)  # 3
        source = declare(source, request, work)
        samples = open_build_samples(request, source, (), work, progress)
        samples = add_reference(samples, request, source)
        opened = OpenedBuild(request=request, source=_named_as(source, adapter), samples=samples)
        prepared = PreparedVariants(
            variants=_prepare(opened, base, adapter, weak, work, progress)  # 4
        )
        progress(BuildStep(what="writing the bundle"))
        target = work / "bundle"
        target.mkdir()
        parts = _make_parts(opened, base, adapter, prepared)
        laid_out = lay_out(target, parts)  # 5
        bases = {
            one.name: BaseRelease(folder=str(base.folder), variant=one)
            for one in base.manifest.variants
        }
        closing = Closing(
            key=key,
            recipients=recipients,
            rehearse=lambda signed: rehearse(  # 6
                signed, key.public_key(), process, progress, bases=bases
            ),
        )
        return close_build(opened, parts, laid_out, prepared, closing, target, progress)


def _check_prompts(request: BuildRequest) -> None:
    given = (request.calibration, request.evaluation)
    if not request.calibration or not all(are_prompts(str(one)) for one in given if one):
        raise BuildError(
            "an adapter is measured on prompts with answers, and none were given",
            found_in=f"--calibration {request.calibration or 'is missing'}",
            remedy="--calibration prompts.jsonl, with what the adapter was trained for",
        )


def _read_base(folder: Path, request: BuildRequest, work: Path) -> _Base:
    manifest = read_manifest(folder)
    facts = manifest.facts
    found_in = str(request.base)
    places = facts.generation.adapters if facts.generation is not None else None
    if places is None:
        raise BuildError(
            f"{facts.name} {facts.version} has no places for adapters",
            found_in=found_in,
            remedy="build the base with --adapters, and roll it out first",
        )
    if request.name == facts.name:
        raise BuildError(
            f"adapter and base have the same name, {facts.name}",
            found_in="--name, --output",
            remedy="give the adapter a name of its own: texts choose it by this name",
        )
    digest = digest_of_folder(folder, manifest)
    if facts.encryption is not None:
        manifest = replace(manifest, facts=replace(facts, encryption=None))
        folder = _decrypt(folder, facts.encryption, manifest, request, work / "base")
    return _Base(folder=folder, manifest=manifest, digest=digest, places=places)


def _decrypt(
    folder: Path, encryption: Encryption, plain: Manifest, request: BuildRequest, target: Path
) -> Path:
    """Write the plain files of an encrypted base to the work folder, and return their folder.

    Raises:
        BuildError: No key is given, or the base is encrypted to others.
    """
    if request.decryption_key is None:
        raise BuildError(
            "the base is encrypted, and its variants cannot be measured without a key",
            found_in=str(request.base),
            remedy="--decryption-key with the private key of one of its recipients: encrypt bases "
            "of adapters to a key of your own, too",
        )
    try:
        key = open_content_key(encryption, load_private_key(request.decryption_key))
    except DeviceError as error:
        raise BuildError(
            f"the key {request.decryption_key} is of none of the {len(encryption.keys)} recipients "
            "of the base",
            found_in=str(request.base),
            remedy="give the private key of a recipient, which --encrypt-to named",
        ) from error
    encrypted = replace(plain, facts=replace(plain.facts, encryption=encryption))
    for path in (entry.path for entry in plain.files):
        written = target / path
        written.parent.mkdir(parents=True, exist_ok=True)
        if not encrypted.is_encrypted(path):
            shutil.copyfile(folder / path, written)
            continue
        with open_regular(folder / path) as source, written.open("xb") as file:
            decrypt_stream(source, file.write, key, path)
    (target / MANIFEST_FILE).write_bytes(encode_manifest(plain))
    return target


def _open_reference(
    request: BuildRequest, base: _Base, adapter: SourceAdapter, work: Path, progress: Progress
) -> tuple[SourceModel, str]:
    """Return the float base with the adapter inside, and why it is weak evidence; "" if it is not.

    Raises:
        BuildError: MODEL is not the source of the base.
    """
    facts = base.manifest.facts
    given = request.float_model
    file, weak = work / "adapted" / "model.onnx", ""
    file.parent.mkdir()
    if given is not None:
        generation = facts.generation
        context = generation.context if generation is not None else None
        own = open_source(given, {}, {}, work, progress, context=context)
        if own.sha256 != facts.source_sha256:
            raise BuildError(
                f"the model ({own.sha256[:12]}) is not the source of {base.words} "
                f"({facts.source_sha256[:12]})",
                found_in=str(given),
                remedy="give the folder that the base was built from, or leave MODEL out",
            )
        model = add_branches(_copy(own.model), base.places, own.model.graph)
    else:
        floats = [one for one in base.manifest.variants if one.facts.precision == FLOAT_PRECISION]
        first = (*floats, *base.manifest.variants)[0]
        model = load_model(base.model_file(first))
        if not floats:
            weak = (
                f"the float model of {base.words} is not at hand, and {first.name} took its place. "
                "To settle it: give the folder of the base's source as MODEL"
            )
    save_model(fill_branches(model, base.places, adapter.tensors), file)
    source = load_source(file)
    config = read_document(base.folder / GENAI_CONFIG)
    texts = describe_texts(config, base.folder, source.inputs, source.outputs)
    note = (
        f"The adapter {request.model.name} of rank {adapter.rank} for {base.words} changes "
        f"{', '.join(adapter.modules)}."
    )
    return replace(source, folder=base.folder, texts=texts, notes=(note, *source.notes)), weak


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    return copied


def _named_as(source: SourceModel, adapter: SourceAdapter) -> SourceModel:
    """Return the reference under the name of the adapter, which is the source of the release."""
    return replace(source, path=adapter.file, sha256=adapter.sha256, size_bytes=adapter.size_bytes)


def _prepare(
    opened: OpenedBuild,
    base: _Base,
    adapter: SourceAdapter,
    weak: str,
    work: Path,
    progress: Progress,
) -> tuple[PreparedVariant, ...]:
    samples = opened.samples
    inputs = EvaluationInputs(
        source=opened.source,
        split=samples.split,
        provider_samples=samples.split.provider_samples(MOST_SAMPLES),
        float_source=samples.float_source,
    )
    prepared = []
    for variant in base.manifest.variants:
        told = for_profile(progress, variant.name)
        told(BuildStep(what="held-out samples"))
        one = _measure(inputs, base, variant, adapter, weak, work, opened.request)
        details = one.accuracy.details
        told(
            BuildStep(
                what="held-out samples",
                outcome=f"{one.accuracy.metric} {format_metric(one.accuracy.value)}, the budget is "
                f"{format_metric(one.accuracy.budget)}; perplexity "
                f"{details[ADAPTER_RATIO]:.3f} times that without the adapter",
            )
        )
        prepared.append(one)
    return tuple(prepared)


def _measure(
    inputs: EvaluationInputs,
    base: _Base,
    variant: Variant,
    adapter: SourceAdapter,
    weak: str,
    work: Path,
    request: BuildRequest,
) -> PreparedVariant:
    """Return a variant of the base with the adapter, measured.

    Raises:
        BuildError: A gate refuses the adapter.
    """
    folder, measured = work / "variants" / variant.name, work / "measured" / variant.name
    folder.mkdir(parents=True)
    measured.mkdir(parents=True)
    write_adapter(folder / ADAPTER_FILE, adapter.tensors)
    own = base.model_file(variant)
    model = measured / "model.onnx"
    save_model(fill_branches(load_model(own), base.places, adapter.tensors), model)
    settings = settings_of(variant)
    run = open_on_provider(model, settings)
    held_out = judge_on_holdout(run, load_profile(_PROFILE).gates.accuracy, inputs)
    ratio, low, high = _compare(inputs, run, open_on_provider(own, settings))
    verdict = held_out.verdict
    reasons = tuple(filter(None, (weak, _doubt(low, high))))
    verdict = replace(verdict, weak=(*verdict.weak, *reasons))
    accuracy = accuracy_of(held_out, verdict, variant.provider)
    named = bounded(ADAPTER_RATIO, ratio, low, high)
    details = accuracy.details | {name: round(value, 6) for name, value in named.items()}
    accuracy = replace(accuracy, details=details)
    perplexity = accuracy.details[FLOAT_PERPLEXITY] * accuracy.details[PERPLEXITY_RATIO]
    notes = (
        f"The perplexity of the answers is {perplexity:.4g} with the adapter, and "
        f"{perplexity / ratio:.4g} without: {ratio:.4f} times (95 %: {low:.4f} to {high:.4f}).",
        *describe_verdict(verdict, held_out.count, inputs.split.held_out, held_out.single),
    )
    problem, remedy = "", "train the adapter longer, or give prompts like its training data"
    if not verdict.passed:
        problem = (
            f"variant {variant.name} with the adapter keeps {verdict.what} "
            f"{format_metric(verdict.value)} of the float model with it, the budget is "
            f"{format_metric(verdict.shown_budget)}"
        )
        remedy = (
            "build the base with prompts like the adapter's among its own (--calibration), or "
            f"without {variant.name}"
        )
    elif low > 1.0:
        problem = f"the adapter makes the answers less likely: {notes[0]}"
    elif request.strict and verdict.weak:
        problem = f"the verdict on {variant.name} is weak: {verdict.weak[0]}"
    if problem and not request.allow_degraded:
        raise BuildError(
            problem,
            found_in=f"{base.words}, variant {variant.name}",
            remedy=f"{remedy}; or --allow-degraded",
        )
    described = inputs.split.held_out.description
    facts = variant.facts
    return PreparedVariant(
        name=variant.name,
        folder=folder,
        model_file=ADAPTER_FILE,
        profile=facts.profile,
        profile_sha256=facts.profile_sha256,
        precision=facts.precision,
        provider=variant.provider,
        device=variant.device,
        compatibility_string=variant.compatibility_string,
        session_options=variant.session_options,
        provider_options=variant.provider_options,
        requires=replace(facts.requires, runtime=_runtime(facts.requires.runtime)),
        toolchain=facts.toolchain,
        size_bytes=(folder / ADAPTER_FILE).stat().st_size,
        accuracy=accuracy,
        placement=facts.placement,
        agreements=derive_agreements([held_out.seen], described),
        tolerances=derive_tolerances([held_out.seen], described),
        degraded=bool(problem) or facts.degraded,
        recipe=(f"adapter of rank {adapter.rank} for {base.words}",),
        attempts=(),
        files=(),
        notes=notes,
    )


def _runtime(wanted: str) -> str:
    """Return the range of ONNX Runtime of a variant with an adapter."""
    return ",".join(filter(None, (wanted, _ADAPTER_RUNTIME)))


def _compare(inputs: EvaluationInputs, run: Run, without: Run) -> tuple[float, float, float]:
    """Return the perplexity with the adapter as a multiple of that without, with bounds, 95 %."""
    samples = inputs.split.held_out
    decoder = samples.decoder
    if decoder is None:
        raise BuildError("the base has no scores of tokens", remedy="build the base again")
    expected = [samples.evaluated(i, inputs.float_source(one)) for i, one in enumerate(samples)]
    reference = TextReference(decoder, samples, expected)
    added, answers = [], []
    for index in range(samples.count):
        counts = [reference.follow(one, index)[1].got for one in (run, without)]
        added.append(float((counts[1] - counts[0]).sum()))
        answers.append(float(len(counts[0])))
    low, high = ratio_bounds(added, answers)
    return math.exp(sum(added) / sum(answers)), math.exp(low), math.exp(high)


def _doubt(low: float, high: float) -> str:
    """Return a doubt if the prompts do not show that the adapter helps; "" without."""
    if low <= 1.0 <= high:
        return (
            f"the prompts do not show that the adapter helps: the perplexity is {low:.3f} to "
            f"{high:.3f} times that without it. To settle it: give more prompts of its domain"
        )
    return ""


def _make_parts(
    opened: OpenedBuild, base: _Base, adapter: SourceAdapter, prepared: PreparedVariants
) -> BundleParts:
    request, samples, facts = opened.request, opened.samples, base.manifest.facts
    return BundleParts(
        facts=BundleFacts(
            name=request.name,
            version=request.version,
            release=request.release,
            created_at=request.created_at,
            source_sha256=adapter.sha256,
            tools=dict(sorted(tool_versions().items())),
            files=(),
            description=samples.split.held_out.description,
            reference=samples.reference,
            adapter=AdapterFacts(
                base=facts.name,
                base_version=facts.version,
                base_digest=base.digest,
                rank=adapter.rank,
                modules=adapter.modules,
            ),
        ),
        variants=prepared.variants,
        golden=samples.golden,
        hooks=None,
    )
