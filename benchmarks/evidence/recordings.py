"""Variants of small models whose worth is known, to be judged again and again.

Each kind of `benchmarks.task_kinds` is quantized by ONNX Runtime in a few ways, from fair to
broken. Outputs are recorded, so that a verdict costs no inference. Models and recorded outputs stay
in `.bench`: a change of the packager asks for new verdicts, not for new models.
"""

import hashlib
import inspect
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.task_kinds.cells import write_task
from benchmarks.task_kinds.kind import Half, Kind
from edgepack.bundle.golden import Golden, compare_outputs
from edgepack.decoding import decode_json
from edgepack.durable import write_file
from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.config.build_file import read_config
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.gates.tolerances import Seen, derive_agreements, derive_tolerances
from edgepack.packager.graph.model_files import RUNTIME_ERRORS, open_on_cpu
from edgepack.packager.pipeline.build_samples import open_build_samples
from edgepack.packager.pipeline.open_model import open_model
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import silent
from edgepack.packager.runtime.evaluator import open_plain
from edgepack.packager.runtime.model_run import run_of
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tasks.describe import describe
from edgepack.packager.tasks.possible import possible_of
from edgepack.packager.tensors.sequence import Feeds, Samples, digest_of
from edgepack.tasks.arrays import Outputs

RECIPES = ("a8w8", "a8w8 per channel", "a16w8", "weights of 6 bits", "weights of 5 bits")
"""Ways to quantize, with integer products of 8 or 16 bits, or float ones."""

_WATCHED = "watched.onnx"

_FAILURES = (EdgepackError, ValueError, RuntimeError, KeyError, *RUNTIME_ERRORS)
"""Of ONNX Runtime's quantizer on a model: the recipe is left out."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Verdict on one variant.

    Attributes:
        passed, weak, kept: See `edgepack.packager.gates.verdict.Verdict`.
        accepted: Of each variant: its golden outputs on a device hold the limits that a build
            derives for this variant.
    """

    passed: bool
    weak: bool
    kept: float
    accepted: tuple[bool, ...]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A recorded variant.

    Attributes:
        recipe: One of `RECIPES`.
        run: Its recorded outputs, with nothing fused, as in a build.
        device_run: The same with ONNX Runtime's optimizations, as on a device.
        truth: Share of the float model's metric that the variant has on fresh data.
    """

    recipe: str
    run: "RecordedRun"
    device_run: "RecordedRun"
    truth: float


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A kind of task: the float model, its samples and its variants.

    Attributes:
        kind, half: See `Kind`.
        is_declared: The outputs are declared.
        is_wrong: An output is declared as another task that its values fit.
        source, samples, held_out, golden: As a build opens them.
        float_run: Recorded outputs of the float model.
        variants: The variants.
    """

    kind: str
    half: Half
    is_declared: bool
    is_wrong: bool
    source: SourceModel
    samples: Samples
    held_out: Samples
    golden: Golden
    float_run: "RecordedRun"
    variants: tuple[Variant, ...]

    def save(self) -> None:
        """Write what was recorded, for later processes."""
        for run in (self.float_run, *(one.run for one in self.variants)):
            run.save()
        for variant in self.variants:
            variant.device_run.save()

    def judge(self, known: Sequence[Verdict] = ()) -> Iterator[Verdict]:
        """Yield the verdict on each variant, by the present constants.

        Args:
            known: Earlier verdicts, whose golden outputs are not compared anew.
        """
        described = describe(self.source, self.samples, self.float_run, silent)
        held_out = msgspec.structs.replace(self.held_out, description=described.description)
        judge = CandidateJudge(self.float_run, held_out, {}, None)
        is_chain = bool(held_out.states) or held_out.decoder is not None
        for place, variant in enumerate(self.variants):
            got = [variant.run(feeds) for feeds in held_out]
            verdict = judge.judge(variant.run) if is_chain else judge.judge_single(got)
            kept = 1.0 if verdict.task_kept is None else verdict.task_kept
            accepted = known[place].accepted if known else self._accept(variant, judge, got)
            yield Verdict(
                passed=verdict.passed, weak=bool(verdict.weak), kept=kept, accepted=accepted
            )

    def _accept(
        self, variant: Variant, judge: CandidateJudge, got: Sequence[Outputs]
    ) -> tuple[bool, ...]:
        """Return for each variant if its golden outputs hold the limits of `variant`."""
        golden = tuple(variant.run(feeds) for feeds in self.golden.inputs)
        errors = judge.reference.errors(got)
        seen = [Seen(errors=errors, expected=self.golden.outputs, got=golden)]
        described, watched = judge.reference.description, self.source.watched
        limits = derive_tolerances(seen, described, watched)
        tasks = derive_agreements(seen, described, watched)
        on_devices = (
            [one.device_run(feeds) for feeds in self.golden.inputs] for one in self.variants
        )
        return tuple(
            compare_outputs(self.golden.outputs, device, limits, tasks).right
            for device in on_devices
        )


def record(kind: Kind, folder: Path) -> tuple[Recording, ...]:
    """Train a kind's model, quantize it in each way and record all outputs.

    Args:
        kind: The kind.
        folder: Its models and recorded outputs; replaced if other sources made them.

    Returns:
        The recording without and with declared outputs, and with wrong declarations.
    """
    sources = _digest_sources(kind)
    made = folder / "made.json"
    known = decode_json(made.read_bytes(), _Made) if made.exists() else None
    if known is None or known.sources != sources:
        known = _Made(sources=sources, truths=_make(kind, folder))
        write_file(made, msgspec.json.encode(known))
    float_run = RecordedRun(_float_model(folder), optimize=False)
    variants = []
    for recipe, truth in known.truths.items():
        path = _path_of(folder, recipe)
        run, device_run = (RecordedRun(path, optimize=optimize) for optimize in (False, True))
        variants.append(Variant(recipe=recipe, run=run, device_run=device_run, truth=truth))
    recordings = []
    declared = read_config(folder / "declared.toml").outputs
    for outputs in ({}, declared) if declared else ({},):
        with suppress(BuildError):  # a declaration that the build rejects
            recordings.append(_open(kind, folder, outputs, float_run, tuple(variants)))
    for others in _wrong_declarations(recordings[0], declared):
        with suppress(BuildError):
            wrong = _open(kind, folder, others, float_run, tuple(variants))
            recordings.append(replace(wrong, is_wrong=True))
    return tuple(recordings)


def _wrong_declarations(
    recording: "Recording", declared: Mapping[str, OutputDeclaration]
) -> Iterator[Mapping[str, OutputDeclaration]]:
    """Yield declarations of the first output as other tasks, if its task is declared."""
    expected = [recording.float_run(feeds) for feeds in recording.held_out]
    output = next(iter(expected[0]))
    if output in declared:
        for task in possible_of(expected, output):
            if task != declared[output].task:
                yield {output: OutputDeclaration(task=task)}


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """Models of a kind: a digest of the sources that made them, and each variant's true share."""

    sources: str
    truths: dict[str, float]


def _digest_sources(kind: Kind) -> str:
    made_by = Path(inspect.getfile(getattr(kind.make, "func", kind.make)))
    steps = inspect.getsource(_make) + inspect.getsource(quantize)
    content = f"{made_by.read_text(encoding='utf-8')}{steps}{RECIPES}"
    return hashlib.sha256(content.encode()).hexdigest()


def _path_of(folder: Path, recipe: str) -> Path:
    return folder / f"{recipe.replace(' ', '-')}.onnx"


def _make(kind: Kind, folder: Path) -> dict[str, float]:
    """Train the model, quantize it, and return the true share of each variant."""
    task = kind.make()
    write_task(task, folder)
    source = open_model(_request(kind, folder, {}), (), folder, silent)
    if source.watched:
        onnx.save(source.model, folder / _WATCHED)
    model = _float_model(folder)
    best = task.measure(open_plain(model))
    truths = {}
    for recipe in RECIPES:
        path = _path_of(folder, recipe)
        with suppress(*_FAILURES):
            quantize(recipe, model, path, task.calibration[:64])
            truths[recipe] = task.measure(open_plain(path)) / best
    return truths


def _float_model(folder: Path) -> Path:
    """Return the file of the float model, with the outputs that a build only watches."""
    watched = folder / _WATCHED
    return watched if watched.exists() else folder / "model.onnx"


def _request(kind: Kind, folder: Path, outputs: Mapping[str, OutputDeclaration]) -> BuildRequest:
    return BuildRequest(
        model=folder / "model.onnx",
        output=folder / "built",
        name=kind.name.replace("_", "-"),
        version="0",
        release=0,
        profiles=(),
        key="",
        calibration=str(folder / "calibration"),
        outputs=outputs,
    )


def _open(
    kind: Kind,
    folder: Path,
    outputs: Mapping[str, OutputDeclaration],
    float_run: "RecordedRun",
    variants: tuple[Variant, ...],
) -> Recording:
    request = _request(kind, folder, outputs)
    source = open_model(request, (), folder, silent)
    opened = open_build_samples(request, source, (), folder, silent)
    return Recording(
        kind=kind.name,
        half=kind.half,
        is_declared=bool(outputs),
        is_wrong=False,
        source=source,
        samples=opened.opened.samples,
        held_out=opened.split.held_out,
        golden=opened.golden,
        float_run=float_run,
        variants=variants,
    )


class RecordedRun:
    """A `Run` that computes the outputs of equal inputs once, also for later processes.

    Args:
        model: The model.
        optimize: Run it with ONNX Runtime's optimizations, as on a device.
    """

    def __init__(self, model: Path, *, optimize: bool) -> None:
        self._model = model
        self._optimize = optimize
        self._file = model.with_suffix(".optimized.outputs" if optimize else ".outputs")
        self._known: dict[bytes, Outputs] = {}
        if self._file.exists():
            self._known = pickle.loads(self._file.read_bytes())
        self._saved = len(self._known)
        self._run: Callable[[Feeds], Outputs] | None = None

    def __call__(self, feeds: Feeds) -> Outputs:
        """Return the outputs of an inference, a dict."""
        key = digest_of(feeds)
        if key not in self._known:
            if self._run is None:
                self._run = run_of(open_on_cpu(self._model, optimize=self._optimize))
            self._known[key] = self._run(feeds)
        return self._known[key]

    def save(self) -> None:
        """Write what was recorded."""
        if len(self._known) > self._saved:
            write_file(self._file, pickle.dumps(self._known))
            self._saved = len(self._known)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, calibration: Sequence[Feeds]) -> None:
        self._left = iter(calibration)

    def get_next(self) -> Feeds | None:
        return next(self._left, None)


def quantize(recipe: str, model: Path, path: Path, calibration: Sequence[Feeds]) -> None:
    """Write a variant of a model by ONNX Runtime.

    Args:
        recipe: One of `RECIPES`.
        model: The float model.
        path: The variant.
        calibration: Samples for ranges.
    """
    if recipe.startswith("weights"):
        largest = 2 ** (int(recipe.split()[-2]) - 1) - 1
        loaded = onnx.load(model)
        for tensor in loaded.graph.initializer:
            values = onnx.numpy_helper.to_array(tensor)
            if values.dtype == np.float32 and values.ndim > 1:
                step = float(np.abs(values).max()) / largest or 1.0
                rounded = (np.round(values / step) * step).astype(np.float32)
                tensor.CopyFrom(onnx.numpy_helper.from_array(rounded, tensor.name))
        onnx.save(loaded, path)
        return
    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_static(
            str(prepared),
            str(path),
            _Reader(calibration),
            quant_format=QuantFormat.QDQ,
            per_channel="per channel" in recipe,
            activation_type=QuantType.QUInt16 if "a16" in recipe else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
