"""Statically quantized candidates of a model, by every method of its profile."""

from pathlib import Path

import onnx

from edgepack.packager.graph.workload import workloads
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateSpec,
    HighPrecision,
    Measured,
    Origin,
    PassCandidateMaker,
    Ranked,
)
from edgepack.packager.quantization.method import QuantizationMethod
from edgepack.packager.quantization.savings import with_workloads
from edgepack.packager.quantization.static.bias_correction import correct_biases
from edgepack.packager.quantization.static.calibrated_model import CalibratedModel
from edgepack.packager.quantization.static.gptq_rounding import GptqRounder, Rounder, to_nearest
from edgepack.packager.quantization.static.methods import costly_methods, plain_methods
from edgepack.packager.quantization.static.plan import Plan
from edgepack.packager.quantization.static.preparation import applicable, prepare
from edgepack.packager.quantization.static.ranking import rank_nodes
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
