"""Statically quantized candidates of a model, by every method of its profile.

The methods of static quantization that a profile asks for, in the order to try.

Ranking of nodes by their cost: measured individually, with all other nodes float.

Preparations of a float model for better quantization; each keeps the model's results.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnx
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.gates.chains import run_samples
from edgepack.packager.graph.held_weights import hold_weights
from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.graph.workload import workloads
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateSpec,
    HighPrecision,
    Measured,
    NodeSensitivity,
    Origin,
    PassCandidateMaker,
    QuantizationMethod,
    Ranked,
)
from edgepack.packager.quantization.equalization.cross_layer import can_equalize, equalize
from edgepack.packager.quantization.equalization.smooth import can_smooth, smooth
from edgepack.packager.quantization.savings import with_workloads
from edgepack.packager.quantization.static.bias_correction import correct_biases
from edgepack.packager.quantization.static.calibrated_model import CalibratedModel
from edgepack.packager.quantization.static.gptq_rounding import GptqRounder, Rounder, to_nearest
from edgepack.packager.quantization.static.plan import Plan
from edgepack.packager.quantization.static.switchable_model import SwitchableModel
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference
from edgepack.packager.tasks.noise import NoiseMeter, order_by_information
from edgepack.packager.tensors.sequence import Samples


class StaticCandidateMaker(PassCandidateMaker[Quantize]):
    """Candidate maker for a float model.

    The model is prepared and calibrated once for each preparation, when that is first tried.
    """

    def __post_init__(self) -> None:
        settings = self.settings
        self._plain = self._calibrate(self.model, self.work_dir)
        self.names = self._plain.names
        if settings.has_high_precision:
            able = tuple(name for name in self.names if name not in self._plain.followers)
            self.high_precision = HighPrecision(words="16-bit", names=able)
        self.methods = plain_methods(settings)
        preparations = applicable(self._plain.index, settings.prepare)
        self.costly_methods = costly_methods(settings, preparations)
        self._prepared: dict[str, tuple[CalibratedModel, tuple[str, ...]]] = {"": (self._plain, ())}
        self._gptq = GptqRounder(
            self.model, self._plain.index, self.samples, self.work_dir / "gptq", self.progress
        )

    def build(self, spec: CandidateSpec) -> BuiltCandidate:
        """Build a candidate; see `CandidateMaker`."""
        method = spec.method
        calibrated, notes = self._prepare(method.preparation)
        model = calibrated.model
        if method.has_corrected_biases:
            self.work_dir.mkdir(parents=True, exist_ok=True)
            model, note = correct_biases(
                model,
                lambda changed: calibrated.quantize(spec, changed)[0],
                [name for name in calibrated.names if name not in spec.float_nodes],
                self.samples,
                self.work_dir,
            )
            notes = (*notes, note)
        quantized, plan = calibrated.quantize(spec, model, self._rounder(method))
        origin = Origin(
            model=calibrated.model if method.preparation else None,
            observed=calibrated.observe(method.base),
        )
        notes = (*notes, *calibrated.describe_infinite(method.base))
        if method.has_gptq_weights:
            notes = (*notes, self._gptq.describe(plan))
        if any(node.is_high_precision for node in plan.nodes):
            notes = (*notes, _describe_high_precision(plan, self.settings))
        return BuiltCandidate(model=quantized, lowered=plan.names, notes=notes, origin=origin)

    def rank(
        self, spec: CandidateSpec, samples: Samples, progress: Progress, measured: Measured = None
    ) -> Ranked:
        """Rank nodes; see `CandidateMaker`. Biases are unchanged."""
        calibrated, _ = self._prepare(spec.method.preparation)
        self.work_dir.mkdir(parents=True, exist_ok=True)
        switchable = calibrated.make_switchable(
            spec, self.work_dir / "ranking.onnx", self._rounder(spec.method)
        )
        ranked = rank_nodes(switchable, samples, progress=progress, measured=measured)
        return with_workloads(ranked, workloads(calibrated.index))

    def _rounder(self, method: QuantizationMethod) -> Rounder:
        return self._gptq if method.has_gptq_weights else to_nearest

    def _prepare(self, name: str) -> tuple[CalibratedModel, tuple[str, ...]]:
        if name not in self._prepared:
            folder = self.work_dir / name
            model, note = prepare(name, self._plain.model, self.settings, self.samples, folder)
            self._prepared[name] = (self._calibrate(model, folder), (note,))
        return self._prepared[name]

    def _calibrate(self, model: onnx.ModelProto, folder: Path) -> CalibratedModel:
        return CalibratedModel(model, self.settings, self.samples, folder, self.progress)


def _describe_high_precision(plan: Plan, settings: Quantize) -> str:
    count = sum(node.is_high_precision for node in plan.nodes)
    return (
        f"{count} of {len(plan.nodes)} quantized nodes have {settings.high_precision_activations} "
        f"activations, the others {settings.activations}; {plan.conversions} tensors are converted "
        "from one to the other. What only moves values goes with the node that makes them."
    )


_RANGES_WITH_PREPARATION = 2
"""A preparation costs a calibration of its own, so only the profile's first ranges try it."""


def plain_methods(settings: Quantize) -> tuple[QuantizationMethod, ...]:
    """Return methods that leave the float model unchanged: calibration methods, then GPTQ."""
    methods = [QuantizationMethod(base=ranges) for ranges in settings.ranges]
    if settings.weight_rounding == "gptq":
        methods.append(QuantizationMethod(base=settings.ranges[0], has_gptq_weights=True))
    return tuple(dict.fromkeys(methods))


def costly_methods(
    settings: Quantize, preparations: Collection[str]
) -> tuple[QuantizationMethod, ...]:
    """Return methods that prepare the float model or correct its biases.

    Args:
        settings: The profile's quantize pass.
        preparations: Preparations of `settings.prepare` that this model is suited for.
    """
    few = [QuantizationMethod(base=ranges) for ranges in settings.ranges[:_RANGES_WITH_PREPARATION]]
    methods = [
        replace(method, preparation=preparation)
        for preparation in settings.prepare
        if preparation in preparations
        for method in few
    ]
    if settings.bias_correction == "try":
        methods += [replace(method, has_corrected_biases=True) for method in (*few, *methods)]
    return tuple(dict.fromkeys(methods))


_MOST_FIRST_RUNS = 300
_FIRST_SAMPLES = 2
_MOST_SAMPLES = 8
_MOST_LOOKED_AT = 32
"""Samples among which those are looked for that tell the most: one float inference each."""


def rank_nodes(
    model: SwitchableModel, samples: Samples, *, progress: Progress, measured: Measured = None
) -> Ranked:
    """Order nodes by cost, worst first.

    All nodes are measured on a few samples, the costlier half on as many more, and so on: only the
    costliest nodes are worth many runs. How many depends on the number of nodes alone, so that the
    same inputs give the same order on a slower machine. First comes the sample on which the float
    model says the most: by a picture without objects, all that makes a detector's scores would seem
    to cost nothing. Then usual samples and informative samples take turns: by the loudest samples
    alone the order was worse for a text recognizer, whose usual samples are different. Samples with
    states stay in the order of time.

    Args:
        model: The model with switches.
        samples: Samples to measure on.
        progress: Called for each node.
        measured: See `CandidateMaker.rank`.

    Returns:
        An entry per node; nodes measured on more samples come first.
    """
    count = len(model.names)
    none = np.zeros(count, dtype=np.bool_)
    known = {} if measured is None else measured
    if not samples.states:
        looked_at = samples.first(_MOST_LOOKED_AT)
        said = run_samples(partial(model.run, quantized=none), looked_at)
        telling = order_by_information(said, samples.description)
        turns = zip(telling, range(looked_at.count), strict=True)
        samples = looked_at.pick(tuple(dict.fromkeys(index for both in turns for index in both)))
    leaders = list(range(count))
    noises: dict[int, list[float]] = {number: [] for number in leaders}
    seen, batch = 0, min(_FIRST_SAMPLES, max(1, _MOST_FIRST_RUNS // (count + 1)))
    while leaders and seen < min(_MOST_SAMPLES, samples.count):
        chosen = samples.pick(range(seen, min(seen + batch, samples.count)))
        expected = run_samples(partial(model.run, quantized=none), chosen)
        meter = NoiseMeter(expected, samples.description)
        for done, number in enumerate(leaders, start=1):
            key = f"{model.names[number]} from {seen}"
            if key not in known:
                alone = none.copy()
                alone[number] = True
                got = run_samples(partial(model.run, quantized=alone), chosen)
                known[key] = meter.mean_noise(got)
            noises[number] += [known[key]] * chosen.count
            progress(BuildStep(what="ranking nodes", done=done, total=len(leaders)))
        seen, batch = seen + chosen.count, seen + chosen.count
        leaders.sort(key=lambda number: (-np.mean(noises[number]), model.names[number]))
        leaders = leaders[: len(leaders) // 2]

    def place(number: int) -> tuple[int, float, str]:
        return -len(noises[number]), -float(np.mean(noises[number])), model.names[number]

    return tuple(
        NodeSensitivity(name=model.names[number], noise=float(np.mean(noises[number])))
        for number in sorted(noises, key=place)
    )


_CHECK_SAMPLES = 4
_TOLERANCE = 1e-3
"""Share of an output's root-mean-square by which it may move (reordered sums)."""


class _Preparation(msgspec.Struct, frozen=True, kw_only=True):
    can: Callable[[GraphIndex], bool]
    do: Callable[[onnx.ModelProto, Quantize, Samples, Path], tuple[onnx.ModelProto, str]]


_PREPARATIONS: Mapping[str, _Preparation] = {
    "smooth": _Preparation(
        can=can_smooth,
        do=lambda model, settings, samples, folder: smooth(
            model, settings.smooth_alpha, samples, folder
        ),
    ),
    "cross-layer": _Preparation(
        can=can_equalize,
        do=lambda model, _settings, samples, folder: equalize(model, samples, folder),
    ),
}


def applicable(index: GraphIndex, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the preparations that a graph gives occasion for."""
    return tuple(name for name in wanted if _PREPARATIONS[name].can(index))


def prepare(
    name: str, model: onnx.ModelProto, settings: Quantize, samples: Samples, folder: Path
) -> tuple[onnx.ModelProto, str]:
    """Prepare a float model, and check that its outputs stay the same.

    Args:
        name: `smooth` or `cross-layer`.
        model: The float model with shapes; not changed.
        settings: The profile's quantize pass.
        samples: Calibration samples.
        folder: Folder for models on the way.

    Returns:
        The prepared model, with weights that may lie in `folder`, and a note with numbers.

    Raises:
        BuildError: The outputs changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prepared, note = _PREPARATIONS[name].do(model, settings, samples, folder)
    prepared = hold_weights(prepared, folder / "prepared.weights")
    few = samples.first(_CHECK_SAMPLES)
    difference = largest_difference(
        ModelRunner(model, folder / "before.onnx").run_all(few),
        ModelRunner(prepared, folder / "after.onnx").run_all(few),
        samples.description,
    )
    if difference > _TOLERANCE:
        raise BuildError(
            f"the preparation {name} changed the float outputs by {difference:.2%} of their size",
            found_in=f"pass quantize, prepare, {name}",
            remedy=f"a profile of your own without {name} in prepare",
        )
    return prepared, note
