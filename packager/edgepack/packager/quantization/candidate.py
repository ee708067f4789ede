"""Makes quantized candidates of one model: calibrated once, written for any settings tried."""

from collections.abc import Collection, Mapping
from pathlib import Path

import onnx

from edgepack.packager.graph.questions import index_graph
from edgepack.packager.profile.schema import Quantize
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.ablation import GatedModel
from edgepack.packager.quantization.assign import Assignment, assign_scales
from edgepack.packager.quantization.calibration import Calibration
from edgepack.packager.quantization.methods import needs_histogram
from edgepack.packager.quantization.observations import Observation
from edgepack.packager.quantization.plan import Plan, make_plan
from edgepack.packager.quantization.ranking import rank_nodes
from edgepack.packager.quantization.writer import absorbs_rectifier, write_qdq
from edgepack.packager.samples.sequence import Samples
from edgepack.packager.search.maker import Built, NodeCost


class Quantizer:
    """One float model with its calibration.

    Args:
        model: The float model, clean and with shapes.
        settings: The profile's quantize pass.
        samples: Calibration samples.
        work_dir: Folder for instrumented models.
        progress: Told about calibration.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        settings: Quantize,
        samples: Samples,
        *,
        work_dir: Path,
        progress: Progress,
    ) -> None:
        self.model = model
        self.settings = settings
        self.index = index_graph(model.graph)
        self._folder = work_dir
        self.everything = everything = make_plan(self.index, settings, ())
        rectified = make_plan(self.index, settings, (), apart=[n.name for n in everything.nodes])
        observed = dict.fromkeys((*everything.activations, *rectified.activations))
        self._calibration = Calibration(
            model,
            [name for name in observed if name not in self.index.initializers],
            samples,
            work_dir=work_dir,
            progress=progress,
        )

    def observe(self, method: str) -> Mapping[str, Observation]:
        """What calibration saw, as far as the method needs it."""
        if needs_histogram(method):
            return self._calibration.histograms()
        return self._calibration.bounds()

    def plan(self, method: str, float_nodes: Collection[str]) -> tuple[Plan, Assignment]:
        """What is quantized, and with which scales.

        A rectifier that saturation cannot take over must be quantized by itself where every
        operator has to be an integer one.
        """
        observed = self.observe(method)
        plan = make_plan(self.index, self.settings, float_nodes)
        scales = assign_scales(self.index, plan, self.settings, observed, method)
        if self.settings.ops == "compute" or self.settings.activation_symmetric:
            return plan, scales
        apart = [
            node.name
            for node in plan.nodes
            if node.rectifier is not None and not absorbs_rectifier(self.index, node, scales)
        ]
        if not apart:
            return plan, scales
        plan = make_plan(self.index, self.settings, float_nodes, apart=apart)
        return plan, assign_scales(self.index, plan, self.settings, observed, method)

    @property
    def methods(self) -> tuple[str, ...]:
        """Ways to turn the calibration into ranges, in the order to try."""
        return self.settings.ranges

    @property
    def names(self) -> tuple[str, ...]:
        """Every node that can be quantized, in graph order."""
        return tuple(node.name for node in self.everything.nodes)

    def build(self, method: str, float_nodes: Collection[str] = ()) -> Built:
        """The quantized model for a calibration method and a set of nodes that stay float."""
        plan, scales = self.plan(method, float_nodes)
        model = write_qdq(self.model, self.index, plan, scales, self.settings)
        return Built(model=model, lowered=tuple(node.name for node in plan.nodes))

    def rank(self, method: str, samples: Samples, progress: Progress) -> tuple[NodeCost, ...]:
        """Measures what quantizing each node alone costs; worst first."""
        plan, scales = self.plan(method, ())
        self._folder.mkdir(parents=True, exist_ok=True)
        gated = GatedModel(self.model, self.index, plan, scales, self._folder / "ranking.onnx")
        return rank_nodes(gated, samples, progress=progress)
