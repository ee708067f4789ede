"""From a float model and a profile to a variant that passed its gates.

1. The float passes; the model must still compute what the source computes.
2. Quantization, where the profile asks for it, with a search for accuracy.
3. Latency, where the provider is here: the float model is published where it is better.
4. The verdict on held-out samples.
5. A run on the provider in a fresh process, where it is here or simulated: compatibility,
   placement, and the outputs once more.
6. The gates; what they refuse is an error, or marked with `--allow-degraded`.
7. Compilation ahead of time, where the profile asks for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from edgepack.bundle.manifest import Accuracy, Placement, Requirements, Toolchain
from edgepack.errors import BuildError
from edgepack.packager.bundling.tool_versions import tool_versions
from edgepack.packager.graph.model_files import RUNTIME_ERRORS, load_model, save_model
from edgepack.packager.judging import gates
from edgepack.packager.judging.accuracy import Metric, OutputDistance, Verdict
from edgepack.packager.judging.evaluation import Evaluator, find_venue
from edgepack.packager.judging.measure import ModelRunner, Run, interleaved_medians_ms
from edgepack.packager.judging.tolerances import derive_tolerances
from edgepack.packager.judging.trial import Trial, try_model
from edgepack.packager.passes.clean import name_nodes
from edgepack.packager.passes.compile import CompiledContext, compile_context
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.runner import run_float_passes
from edgepack.packager.profile.schema import Profile, Quantize
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.candidate import Quantizer
from edgepack.packager.samples.sequence import Samples, SampleSplit
from edgepack.packager.search import MOST_SAMPLES, CandidateJudge, SearchResult, search
from edgepack.packager.source.model import SourceModel
from edgepack.packager.variant import PreparedVariant

MODEL_FILE = "model.onnx"
_FLOAT_PRECISION = "fp32"
_TRIAL_SAMPLES = 4
"""A simulator takes 1…7 s an inference."""

_TRIAL_TIMEOUT_S = 600.0
_LATENCY_ROUNDS = 50
_QUICK_ROUNDS = 10


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """The model that goes on to the gates.

    Attributes:
        path: The model, in the work folder.
        precision: What it is.
        found: What the search tried; None where nothing was quantized.
        notes: Decisions on the way, without times.
        timed_notes: The same with times.
        latency_ms, float_latency_ms: Medians; None where its provider is not here.
    """

    path: Path
    precision: str
    found: SearchResult | None
    notes: tuple[str, ...]
    latency_ms: float | None
    float_latency_ms: float | None
    timed_notes: tuple[str, ...] = ()


def prepare_variant(
    source: SourceModel,
    profile: Profile,
    split: SampleSplit,
    *,
    work_dir: Path,
    progress: Progress,
    allow_degraded: bool,
    metric: Metric | None = None,
) -> PreparedVariant:
    """Prepares the variant of one profile; see the steps above.

    Args:
        source: The source model, with static shapes where the profile needs them.
        profile: The profile.
        split: Samples for ranges, for choosing, and for the verdict.
        work_dir: Folder for everything that is written; the variant ends up inside.
        progress: Told about each step.
        allow_degraded: Publish a variant that gates refuse, marked.
        metric: The user's own metric, which then decides in place of agreement with the float
            model.

    Returns:
        The variant, its files in `folder`.

    Raises:
        BuildError: A pass failed, the provider refuses the model, or a gate does: with numbers.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    evaluator = Evaluator(profile, find_venue(profile))
    context = PassContext(
        profile_name=profile.name,
        limits=profile.limits,
        samples=split.calibration,
        work_dir=work_dir,
    )
    float_source = _run_source(source, work_dir)
    passed = run_float_passes(source.model, profile, context, progress)  # 1.
    prepared = work_dir / "prepared.onnx"
    save_model(passed.model, prepared)
    chosen = _choose(
        passed.model, prepared, profile, split, evaluator, float_source, metric, work_dir, progress
    )  # 2. and 3.
    folder = work_dir / "variant"
    folder.mkdir(exist_ok=True)
    final = folder / MODEL_FILE
    size_bytes = _finish(chosen.path, source.model, final)
    judge = CandidateJudge(float_source, split.held_out, profile.gates.accuracy, metric)
    progress(f"{profile.name}: held-out samples", 0, split.held_out.count)
    run = evaluator.open(final)
    got = [run(feeds) for feeds in split.held_out]
    distances = judge.reference.distances(got)
    verdict = judge.reference.judge(got) if metric is None else judge.judge(run)  # 4.
    del run  # its session holds the whole model, and the trial opens another
    trial = _try_on_provider(final, profile, evaluator, split.held_out, progress)  # 5.
    seen = [distances]
    if trial is not None:
        few = split.held_out.pick(range(len(trial.outputs)))
        reference = CandidateJudge(float_source, few, profile.gates.accuracy, None).reference
        seen.append(reference.distances(trial.outputs))
    placement = trial.placement if trial else _unverified(profile)
    refusals = [
        refusal
        for refusal in (
            gates.check_accuracy(profile, verdict, split.held_out.count, chosen.found),
            _check_trial(profile, seen),
            gates.check_placement(profile, placement),
            gates.check_size(profile, size_bytes, source.size_bytes),
        )
        if refusal is not None
    ]  # 6.
    _refuse(refusals, allow_degraded)
    compiled = _compile(final, work_dir, profile, split.held_out, progress)  # 7.
    return PreparedVariant(
        name=profile.name,
        folder=compiled.folder if compiled else folder,
        model_file=compiled.model_file if compiled else MODEL_FILE,
        profile=profile.name,
        profile_sha256=profile.sha256,
        precision=chosen.precision,
        provider=profile.device.provider,
        device=profile.device.type,
        compatibility_string=compiled.compatibility_string if compiled else "",
        session_options=profile.provider.session,
        provider_options=compiled.provider_options if compiled else profile.provider.options,
        requires=_requirements(profile),
        toolchain=_toolchain(compiled),
        accuracy=_accuracy(verdict, distances, split.held_out.count, evaluator.provider),
        placement=compiled.placement if compiled else placement,
        tolerances=derive_tolerances(seen),
        degraded=bool(refusals),
        latency_ms=chosen.latency_ms,
        float_latency_ms=chosen.float_latency_ms,
        attempts=chosen.found.attempts if chosen.found else (),
        timed_notes=chosen.timed_notes,
        notes=(
            *passed.notes,
            *chosen.notes,
            *_venue_notes(evaluator, profile, trial),
            *((compiled.because,) if compiled else ()),
            *(f"Published although: {refusal.problem}." for refusal in refusals),
        ),
    )


def _run_source(source: SourceModel, work_dir: Path) -> Run:
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    name_nodes(model.graph)
    try:
        return ModelRunner(model, work_dir / "source.onnx").run
    except RUNTIME_ERRORS as error:
        raise BuildError(
            f"ONNX Runtime cannot load the model: {str(error).strip().splitlines()[0]}",
            found_in=str(source.path),
            remedy="export it with operators that ONNX Runtime has",
        ) from error


def _choose(
    model: onnx.ModelProto,
    prepared: Path,
    profile: Profile,
    split: SampleSplit,
    evaluator: Evaluator,
    float_source: Run,
    metric: Metric | None,
    work_dir: Path,
    progress: Progress,
) -> _Chosen:
    """Quantizes where the profile asks for it, and decides between that and the float model."""
    settings = profile.quantize
    if settings is None:
        return _float_chosen(prepared, profile.about.precision, None, ())
    quantizer = Quantizer(
        model, settings, split.calibration, work_dir=work_dir / "calibration", progress=progress
    )
    if not quantizer.everything.nodes:
        return _nothing_to_quantize(prepared, profile, settings)
    race = _Race(prepared, profile, evaluator, split.search)
    found = search(
        quantizer,
        settings,
        evaluator,
        CandidateJudge(
            float_source, _few(split.search, split.calibration), profile.gates.accuracy, metric
        ),
        work_dir=work_dir,
        progress=progress,
        is_hopeless=race.is_hopeless,
    )
    best = found.best
    times = race.run(best.path)
    if times is not None and "slower" in profile.gates.float_instead and gates.is_slower(*times):
        note = (
            "The float model is published: the quantized one is slower on this host's "
            f"{evaluator.provider}."
        )
        timed = (
            f"The quantized model takes {times[0]:.2f} ms, the float one {times[1]:.2f} ms "
            "(1 thread)."
        )
        float_model = _float_chosen(prepared, _FLOAT_PRECISION, found, (note,), times[1])
        return replace(float_model, timed_notes=(timed,))
    if not best.verdict.passed and "inaccurate" in profile.gates.float_instead:
        note = (
            f"The float model is published: the best quantized one ({best.words}) keeps "
            f"{best.verdict.metric} {best.verdict.value:.4f}, the budget is "
            f"{best.verdict.budget:.4f}."
        )
        return _float_chosen(prepared, _FLOAT_PRECISION, found, (note,))
    timed_notes = []
    if times is not None and times[0] > times[1]:
        timed_notes.append(
            f"It is no faster than the float model on this host ({times[0]:.2f} ms against "
            f"{times[1]:.2f} ms, 1 thread), but smaller."
        )
    return _Chosen(
        path=best.path,
        precision=profile.about.precision,
        found=found,
        notes=(f"Quantized with {best.words}.",),
        timed_notes=tuple(timed_notes),
        latency_ms=times[0] if times else None,
        float_latency_ms=times[1] if times else None,
    )


def _float_chosen(
    path: Path,
    precision: str,
    found: SearchResult | None,
    notes: tuple[str, ...],
    latency_ms: float | None = None,
) -> _Chosen:
    return _Chosen(
        path=path,
        precision=precision,
        found=found,
        notes=notes,
        latency_ms=latency_ms,
        float_latency_ms=latency_ms,
    )


def _nothing_to_quantize(prepared: Path, profile: Profile, settings: Quantize) -> _Chosen:
    if not profile.gates.float_instead:
        raise BuildError(
            f"profile '{profile.name}' quantizes, and the model has no node that it could "
            f"(ops = '{settings.ops}')",
            found_in="pass quantize",
            remedy="--profile fp32",
        )
    note = "The float model is published: it has no node that could be quantized."
    return _float_chosen(prepared, _FLOAT_PRECISION, None, (note,))


class _Race:
    """Times candidates against the float model, where their provider is here."""

    def __init__(
        self, prepared: Path, profile: Profile, evaluator: Evaluator, samples: Samples
    ) -> None:
        self._prepared = prepared
        self._profile = profile
        self._evaluator = evaluator
        self._samples = samples

    def is_hopeless(self, candidate: Run) -> bool:
        """Whether a candidate is so slow that its accuracy does not matter."""
        if not self._evaluator.venue.is_native or "slower" not in self._profile.gates.float_instead:
            return False
        other = self._evaluator.open(self._prepared)
        times = interleaved_medians_ms(candidate, other, self._samples, rounds=_QUICK_ROUNDS)
        return gates.is_slower(*times, factor=gates.HOPELESSLY_SLOW_FACTOR)

    def run(self, path: Path) -> tuple[float, float] | None:
        """Medians on one thread, milliseconds: the candidate's and the float model's."""
        if not self._evaluator.venue.is_native:
            return None
        return interleaved_medians_ms(
            self._evaluator.open(path, threads=1),
            self._evaluator.open(self._prepared, threads=1),
            self._samples,
            rounds=_LATENCY_ROUNDS,
        )


def _few(first: Samples, then: Samples) -> Samples:
    """Up to `MOST_SAMPLES` samples: all of the first kind, then some of the other."""
    head = min(first.count, MOST_SAMPLES)
    tail = min(then.count, MOST_SAMPLES - head)
    return Samples(
        count=head + tail,
        read=lambda index: first.read(index) if index < head else then.read(index - head),
        source=first.source,
    )


def _finish(path: Path, source: onnx.ModelProto, final: Path) -> int:
    """Writes the variant's model, with the source's metadata, which applications read."""
    model = load_model(path)
    del model.metadata_props[:]
    model.metadata_props.extend(sorted(source.metadata_props, key=lambda entry: entry.key))
    model.producer_name = "edgepack"
    model.producer_version = ""
    return save_model(model, final)


def _try_on_provider(
    path: Path, profile: Profile, evaluator: Evaluator, samples: Samples, progress: Progress
) -> Trial | None:
    if not evaluator.venue.can_run:
        return None
    progress(f"{profile.name}: running on {profile.device.provider}", 0, 0)
    return try_model(
        path,
        samples.pick(range(min(samples.count, _TRIAL_SAMPLES))),
        provider=profile.device.provider,
        device=profile.device.type,
        provider_options=profile.provider.options,
        session_options=profile.provider.session,
        timeout_s=_TRIAL_TIMEOUT_S,
    )


def _unverified(profile: Profile) -> Placement:
    return Placement(provider=profile.device.provider, taken=0, total=0, verified=False)


def _check_trial(
    profile: Profile, seen: Sequence[Sequence[OutputDistance]]
) -> gates.Refusal | None:
    """Whether the provider computes what the CPU's stand-in does, give or take its rounding."""
    if len(seen) < 2:
        return None
    for stand_in, real in zip(seen[0], seen[1], strict=True):
        if real.nrmse > 2.0 * stand_in.worst_nrmse + gates.TRIAL_ROOM_NRMSE:
            return gates.Refusal(
                gate="accuracy",
                problem=f"{profile.device.provider} computes output '{real.name}' with an error "
                f"of {real.nrmse:.1%} of its size, the CPU's stand-in with at most "
                f"{stand_in.worst_nrmse:.1%}",
                found_in=f"{profile.name}, run on {profile.device.provider} here",
                remedy="another profile for this device, e.g. with 8-bit activations",
            )
    return None


def _refuse(refusals: Sequence[gates.Refusal], allow_degraded: bool) -> None:
    if refusals and not allow_degraded:
        first = refusals[0]
        raise BuildError(
            gates.join_problems(refusals), found_in=first.found_in, remedy=first.remedy
        )


def _compile(
    model: Path, work_dir: Path, profile: Profile, samples: Samples, progress: Progress
) -> CompiledContext | None:
    settings = profile.compile
    if not settings.enabled:
        return None
    progress(f"{profile.name}: compiling for {settings.soc_model or settings.htp_arch}", 0, 0)
    return compile_context(
        model,
        work_dir / "compiled",
        feeds=samples.read(0),
        soc_model=settings.soc_model,
        htp_arch=settings.htp_arch,
        provider_options=profile.provider.options,
        compile_options=settings.options,
        session_options=profile.provider.session,
        timeout_s=settings.timeout_s,
    )


def _requirements(profile: Profile) -> Requirements:
    device = profile.device
    return Requirements(
        arch=device.arch,
        cpu_features=device.cpu_features,
        soc=device.soc,
        runtime=device.runtime,
        drivers=device.drivers,
    )


def _toolchain(compiled: CompiledContext | None) -> Toolchain:
    tools = tool_versions() | (compiled.tools if compiled else {})
    runtime = tools.pop("onnxruntime", "") or tools.get("onnxruntime-openvino", "")
    return Toolchain(
        onnxruntime=runtime,
        tools=dict(sorted(tools.items())),
        compiled_for=compiled.compiled_for if compiled else "",
    )


def _accuracy(
    verdict: Verdict, distances: Sequence[OutputDistance], sample_count: int, provider: str
) -> Accuracy:
    details = {}
    for distance in distances:
        suffix = f"[{distance.name}]" if len(distances) > 1 else ""
        details[f"explained_variance{suffix}"] = round(distance.explained_variance, 6)
        details[f"cosine{suffix}"] = round(distance.cosine, 6)
        details[f"nrmse{suffix}"] = round(distance.nrmse, 6)
        details[f"sqnr_db{suffix}"] = round(distance.sqnr_db, 2)
        details[f"max_abs_error{suffix}"] = round(distance.max_abs_error, 6)
        if distance.row_agreement is not None:
            details[f"top1_agreement{suffix}"] = round(distance.row_agreement, 6)
    return Accuracy(
        metric=verdict.metric,
        value=round(verdict.value, 6),
        float_value=round(verdict.float_value, 6),
        budget=round(verdict.budget, 6),
        sample_count=sample_count,
        provider=provider,
        details=details,
    )


def _venue_notes(evaluator: Evaluator, profile: Profile, trial: Trial | None) -> tuple[str, ...]:
    if trial is None:
        return (
            f"Not run on {profile.device.provider} here ({evaluator.venue.because}): accuracy "
            "is measured on the CPU provider, placement is not known.",
        )
    if evaluator.venue.is_simulated:
        return (
            f"Accuracy is measured on the CPU provider; {len(trial.outputs)} samples ran on the "
            f"simulator of {profile.device.provider} too.",
        )
    return ()
