"""Calibrated float model: plans, scales and quantized models for any range method."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from edgepack.packager.graph.queries import GraphIndex, index_graph
from edgepack.packager.profiles.calibration_methods import needs_histogram
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.calibration import Calibration
from edgepack.packager.quantization.contract import CandidateSpec
from edgepack.packager.quantization.static.assign import Assignment, assign_scales
from edgepack.packager.quantization.static.calibration_methods import ScaleCache
from edgepack.packager.quantization.static.gptq_rounding import Rounder, to_nearest
from edgepack.packager.quantization.static.high_precision_activations import find_followers
from edgepack.packager.quantization.static.mixed_scale_concat import find_mixed_scale_concats
from edgepack.packager.quantization.static.plan import Plan, make_plan
from edgepack.packager.quantization.static.switchable_model import SwitchableModel
from edgepack.packager.quantization.static.writer import QdqWriter, absorbs_rectifier
from edgepack.packager.tensors.observations import Observation
from edgepack.packager.tensors.sequence import Samples
from edgepack.packager.wording import some_of

_SHOWN = 3


@dataclass
class CalibratedModel:
    """A float model that is calibrated on demand, and only once.

    Attributes:
        model: The float model, clean and with shapes.
        settings: The profile's quantize pass.
        samples: Calibration samples.
        work_dir: Folder for instrumented models.
        progress: Called for calibration.
    """

    model: onnx.ModelProto
    settings: Quantize
    samples: Samples
    work_dir: Path
    progress: Progress

    def __post_init__(self) -> None:
        self.index = index_graph(self.model.graph)
        self._scales = ScaleCache(self.index, self.settings)
        everything = make_plan(self.index, self.settings, ())
        self.names = everything.names
        self.followers = find_followers(self.index, everything.positions)
        self._rectified = make_plan(self.index, self.settings, (), apart=self.names)
        observed = dict.fromkeys((*everything.activations, *self._rectified.activations))
        tensors = [name for name in observed if name not in self.index.initializers]
        self._calibration = Calibration(
            self.model, tensors, self.samples, self.work_dir, self.progress
        )

    def plan(self, spec: CandidateSpec, index: GraphIndex) -> tuple[Plan, Assignment]:
        """Return the quantized parts and their scales.

        A rectifier that saturation cannot replace must be quantized by itself if every operator has
        to be an integer operator. Nodes that join values of very different size at the end get high
        precision or stay float, see `find_mixed_scale_concats`; nodes that read or make infinite
        values stay float.

        Args:
            spec: The calibration method, float nodes, and nodes of high precision.
            index: The graph to plan for: the model's own, or a graph with other constants.
        """
        settings = self.settings
        ranges = spec.method.base
        observed = self.observe(ranges)
        everything = make_plan(index, settings, ())
        uneven = find_mixed_scale_concats(index, everything, settings.activations, observed)
        float_nodes, high_precision = {*spec.float_nodes}, {*spec.high_precision_nodes}
        if settings.has_high_precision:
            high_precision |= uneven
            uneven = find_mixed_scale_concats(
                index, everything, settings.high_precision_activations, observed
            )
        float_nodes |= uneven | self._beside(self._infinite(observed))
        plan = make_plan(index, settings, float_nodes, high_precision_nodes=high_precision)
        cache = self._scales if index is self.index else ScaleCache(index, settings)
        scales = assign_scales(plan, observed, ranges, cache)
        if settings.ops == "compute" or settings.activation_symmetric:
            return plan, scales
        apart = [
            node.name
            for node in plan.nodes
            if node.rectifier is not None and not absorbs_rectifier(index, node, scales)
        ]
        if not apart:
            return plan, scales
        plan = make_plan(
            index, settings, float_nodes, high_precision_nodes=high_precision, apart=apart
        )
        return plan, assign_scales(plan, observed, ranges, cache)

    def quantize(
        self,
        spec: CandidateSpec,
        model: onnx.ModelProto,
        rounder: Rounder = to_nearest,
    ) -> tuple[onnx.ModelProto, Plan]:
        """Return the quantized model, and its quantized parts.

        Args:
            spec: See `plan`.
            model: The float model: the calibrated model, or a model that differs in constants only.
            rounder: How its weights are rounded.
        """
        index = self.index if model is self.model else index_graph(model.graph)
        plan, scales = self.plan(spec, index)
        writer = QdqWriter(model, index, plan, rounder(plan, scales), self.settings)
        return writer.write(), plan

    def make_switchable(
        self, spec: CandidateSpec, path: Path, rounder: Rounder = to_nearest
    ) -> SwitchableModel:
        """Write the model with a switch for every node's quantization to `path`, and return the
        opened model.
        """
        plan, scales = self.plan(spec, self.index)
        return SwitchableModel(self.model, self.index, plan, rounder(plan, scales), path)

    def describe_infinite(self, ranges: str) -> tuple[str, ...]:
        """Return a note on nodes that stay float since no scale holds their inputs or outputs."""
        tensors = self._infinite(self.observe(ranges))
        nodes = self._beside(tensors)
        if not nodes:
            return ()
        return (
            f"{len(nodes)} nodes stay float: they read or make infinite values, which no scale "
            f"holds ({some_of(tensors, _SHOWN)}).",
        )

    def _infinite(self, observed: Mapping[str, Observation]) -> tuple[str, ...]:
        """Return tensors that are infinite somewhere, in graph order."""
        return tuple(name for name, seen in observed.items() if not seen.is_finite)

    def _beside(self, tensors: Collection[str]) -> set[str]:
        """Return the names of the nodes that would quantize any of these tensors."""
        return {
            node.name for node in self._rectified.nodes if not set(tensors).isdisjoint(node.tensors)
        }

    def observe(self, ranges: str) -> Mapping[str, Observation]:
        """Return the observations of calibration that the method needs."""
        if needs_histogram(ranges):
            return self._calibration.histograms
        return self._calibration.bounds
