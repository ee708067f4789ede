"""Makes statically quantized candidates of one model, in every way that its profile asks for."""

from collections.abc import Collection
from pathlib import Path

import onnx

from edgepack.packager.graph.workload import workloads
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.contract import Built, NodeCost, Origin, Raising
from edgepack.packager.quantization.savings import with_workloads
from edgepack.packager.quantization.static.bias_correction import correct_biases
from edgepack.packager.quantization.static.calibrated import CalibratedModel, Spared
from edgepack.packager.quantization.static.gptq_rounding import (
    GptqRounder,
    Rounder,
    to_nearest,
)
from edgepack.packager.quantization.static.plan import Plan
from edgepack.packager.quantization.static.preparation import applicable, prepare
from edgepack.packager.quantization.static.quantization_method import (
    QuantizationMethod,
    list_methods,
    parse_method,
)
from edgepack.packager.quantization.static.ranking import rank_nodes
from edgepack.packager.tensors.sequence import Samples


class Quantizer:
    """One float model, and what its profile would have done to it before quantization.

    The model is prepared and calibrated once for each preparation, when that is first tried.

    Args:
        model: The float model, clean and with shapes.
        settings: The profile's quantize pass.
        samples: Calibration samples.
        work_dir: Folder for instrumented models.
        progress: Told about calibration.
    """

    verb = "quantized"

    def __init__(
        self,
        model: onnx.ModelProto,
        settings: Quantize,
        samples: Samples,
        *,
        work_dir: Path,
        progress: Progress,
    ) -> None:
        self._settings = settings
        self._samples = samples
        self._folder = work_dir
        self._progress = progress
        self._plain = CalibratedModel(
            model, settings, samples, work_dir=work_dir, progress=progress
        )
        preparations = applicable(self._plain.index, settings.prepare)
        self._ways = list_methods(settings, preparations)
        self._prepared: dict[str, tuple[CalibratedModel, tuple[str, ...]]] = {"": (self._plain, ())}
        self._gptq = GptqRounder(model, self._plain.index, samples, work_dir / "gptq", progress)

    @property
    def methods(self) -> tuple[str, ...]:
        """Ways that leave the float model as it is."""
        return tuple(way.words for way in self._ways if way.is_plain)

    @property
    def costly_methods(self) -> tuple[str, ...]:
        """Ranges with a preparation or a correction, see `ways`."""
        return tuple(way.words for way in self._ways if not way.is_plain)

    @property
    def raising(self) -> Raising | None:
        """How activations get 16 bits, where the profile names a type for that."""
        if not self._settings.can_raise:
            return None
        followers = self._plain.followers
        return Raising(
            word="16-bit",
            names=tuple(name for name in self.names if name not in followers),
            build=self.build,
            rank=lambda method, samples, progress: self._rank(
                method, Spared(raised=self.names), samples, progress
            ),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Every node that can be quantized, in graph order."""
        return self._plain.names

    def build(
        self, method: str, float_nodes: Collection[str] = (), raised: Collection[str] = ()
    ) -> Built:
        """The quantized model for one of its methods, with nodes that stay float or are raised."""
        way = parse_method(method)
        calibrated, notes = self._prepare(way.preparation)
        model, spared = calibrated.model, Spared(float_nodes=float_nodes, raised=raised)
        if way.is_bias_corrected:
            self._folder.mkdir(parents=True, exist_ok=True)
            model, note = correct_biases(
                model,
                lambda changed: calibrated.quantize(way.ranges, spared, changed)[0],
                [name for name in calibrated.names if name not in float_nodes],
                self._samples,
                self._folder,
            )
            notes = (*notes, note)
        quantized, plan = calibrated.quantize(way.ranges, spared, model, self._rounder(way))
        origin = Origin(
            model=calibrated.model if way.preparation else None,
            observed=calibrated.observe(way.ranges),
        )
        notes = (*notes, *calibrated.describe_endless(way.ranges))
        if way.is_gptq:
            notes = (*notes, self._gptq.describe(plan))
        if any(node.is_raised for node in plan.nodes):
            notes = (*notes, _describe_raised(plan, self._settings))
        return Built(model=quantized, lowered=plan.names, notes=notes, origin=origin)

    def rank(self, method: str, samples: Samples, progress: Progress) -> tuple[NodeCost, ...]:
        """Measures what quantizing each node alone costs; worst first. Biases stay as they are."""
        return self._rank(method, Spared(), samples, progress)

    def _rank(
        self, method: str, spared: Spared, samples: Samples, progress: Progress
    ) -> tuple[NodeCost, ...]:
        way = parse_method(method)
        calibrated, _ = self._prepare(way.preparation)
        self._folder.mkdir(parents=True, exist_ok=True)
        gated = calibrated.gate(
            way.ranges, self._folder / "ranking.onnx", spared, self._rounder(way)
        )
        costs = rank_nodes(gated, samples, progress=progress)
        return with_workloads(costs, workloads(calibrated.index))

    def _rounder(self, way: QuantizationMethod) -> Rounder:
        return self._gptq if way.is_gptq else to_nearest

    def _prepare(self, name: str) -> tuple[CalibratedModel, tuple[str, ...]]:
        if name not in self._prepared:
            folder = self._folder / name
            model, note = prepare(name, self._plain.model, self._settings, self._samples, folder)
            calibrated = CalibratedModel(
                model, self._settings, self._samples, work_dir=folder, progress=self._progress
            )
            self._prepared[name] = (calibrated, (note,))
        return self._prepared[name]


def _describe_raised(plan: Plan, settings: Quantize) -> str:
    raised = sum(node.is_raised for node in plan.nodes)
    return (
        f"{raised} of {len(plan.nodes)} quantized nodes have {settings.high_precision_activations} "
        f"activations, the others {settings.activations}; {plan.conversions} tensors are converted "
        "from one to the other. What only moves values goes with the node that makes them."
    )
