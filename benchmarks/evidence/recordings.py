"""Variants of small models whose worth is known, to be judged again and again.

Each kind of `benchmarks.task_kinds` is quantized by ONNX Runtime in a few ways, from fair to
broken. Outputs are recorded, so that a verdict costs no inference.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
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
from benchmarks.task_kinds.kind import Half, Kind, TaskModel
from edgepack.bundle.golden import Golden, compare_outputs
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
from edgepack.packager.runtime.model_run import Run, run_of
from edgepack.packager.search import judge as search_judge
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tasks.describe import describe
from edgepack.packager.tensors.sequence import Feeds, Samples, digest_of
from edgepack.tasks.arrays import Outputs

RECIPES = ("a8w8", "a8w8 per channel", "a16w8", "weights of 6 bits", "weights of 5 bits")
"""Ways to quantize, with integer products of 8 or 16 bits, or float ones."""

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
    run: Run
    device_run: Run
    truth: float


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A kind of task: the float model, its samples and its variants.

    Attributes:
        kind, half: See `Kind`.
        is_declared: The outputs are declared.
        source, samples, held_out, golden: As a build opens them.
        float_run: Recorded outputs of the float model.
        variants: The variants.
    """

    kind: str
    half: Half
    is_declared: bool
    source: SourceModel
    samples: Samples
    held_out: Samples
    golden: Golden
    float_run: Run
    variants: tuple[Variant, ...]

    def judge(self) -> Iterator[Verdict]:
        """Yield the verdict on each variant, by the present constants."""
        described = describe(self.source, self.samples, self.float_run, silent)
        held_out = msgspec.structs.replace(self.held_out, description=described.description)
        judge = CandidateJudge(self.float_run, held_out, {}, None)
        on_devices = [
            [one.device_run(feeds) for feeds in self.golden.inputs] for one in self.variants
        ]
        for variant in self.variants:
            verdict = judge.judge(variant.run, at_least=search_judge.NEAR_SPARE)
            kept = 1.0 if verdict.task_kept is None else verdict.task_kept
            got = [variant.run(feeds) for feeds in held_out]
            golden = tuple(variant.run(feeds) for feeds in self.golden.inputs)
            errors = judge.reference.errors(got)
            seen = [Seen(errors=errors, expected=self.golden.outputs, got=golden)]
            limits = derive_tolerances(seen, judge.reference.description)
            tasks = derive_agreements(seen, judge.reference.description)
            accepted = tuple(
                compare_outputs(self.golden.outputs, device, limits, tasks).right
                for device in on_devices
            )
            yield Verdict(
                passed=verdict.passed, weak=bool(verdict.weak), kept=kept, accepted=accepted
            )


def record(kind: Kind, folder: Path) -> tuple[Recording, ...]:
    """Train a kind's model, quantize it in each way and record all outputs.

    Args:
        kind: The kind.
        folder: Replaced.

    Returns:
        The recording without and with declared outputs.
    """
    task = kind.make()
    write_task(task, folder)
    model = folder / "model.onnx"
    best = task.measure(open_plain(model))
    variants = []
    for recipe in RECIPES:
        path = folder / f"{recipe.replace(' ', '-')}.onnx"
        with suppress(*_FAILURES):
            _quantize(recipe, model, path, task)
            run = open_plain(path)
            truth = task.measure(run) / best
            device_run = recorded(run_of(open_on_cpu(path, optimize=True)))
            variants.append(
                Variant(recipe=recipe, run=recorded(run), device_run=device_run, truth=truth)
            )
    float_run = recorded(open_plain(model))
    recordings = []
    declared = read_config(folder / "declared.toml").outputs
    for outputs in ({}, declared) if declared else ({},):
        with suppress(BuildError):  # a declaration that the build rejects
            recordings.append(_open(kind, folder, outputs, float_run, tuple(variants)))
    return tuple(recordings)


def _open(
    kind: Kind,
    folder: Path,
    outputs: Mapping[str, OutputDeclaration],
    float_run: Run,
    variants: tuple[Variant, ...],
) -> Recording:
    request = BuildRequest(
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
    source = open_model(request, (), folder, silent)
    opened = open_build_samples(request, source, (), folder, silent)
    return Recording(
        kind=kind.name,
        half=kind.half,
        is_declared=bool(outputs),
        source=source,
        samples=opened.opened.samples,
        held_out=opened.split.held_out,
        golden=opened.golden,
        float_run=float_run,
        variants=variants,
    )


def recorded(run: Run) -> Run:
    """Return a run that computes the outputs of equal inputs once."""
    known: dict[bytes, Outputs] = {}

    def replay(feeds: Feeds) -> Outputs:
        key = digest_of(feeds)
        if key not in known:
            known[key] = run(feeds)
        return known[key]

    return replay


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, task: TaskModel) -> None:
        self._left = iter(task.calibration[:64])

    def get_next(self) -> Feeds | None:
        return next(self._left, None)


def _quantize(recipe: str, model: Path, path: Path, task: TaskModel) -> None:
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
            _Reader(task),
            quant_format=QuantFormat.QDQ,
            per_channel="per channel" in recipe,
            activation_type=QuantType.QUInt16 if "a16" in recipe else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
        )
