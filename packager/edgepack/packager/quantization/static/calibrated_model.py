"""Calibrated float model: plans, scales and quantized models for any range method.

Joins of very different values at the end of a model, which a single scale cannot hold.

A detector ends in a Concat of boxes (0…640) and scores (0…1). In 8 bits a step of the joined tensor
is 2.5: every score becomes zero (onnxruntime#14233). Such a join is not quantized with the others,
nor are the nodes behind the join; all computing nodes lie before.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import GraphIndex, index_graph, reached
from edgepack.packager.profiles.calibration_methods import needs_histogram
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.calibration import Calibration
from edgepack.packager.quantization.contract import CandidateSpec
from edgepack.packager.quantization.static.assign import Assignment, assign_scales
from edgepack.packager.quantization.static.calibration_methods import ScaleCache
from edgepack.packager.quantization.static.gptq_rounding import Rounder, to_nearest
from edgepack.packager.quantization.static.high_precision_activations import find_followers
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


_FEWEST_STEPS = 8
"""Steps of the joined scale that the smallest joined tensor must span at least."""


def find_mixed_scale_concats(
    index: GraphIndex, plan: Plan, activations: str, observed: Mapping[str, Observation]
) -> frozenset[str]:
    """Return the names of quantized nodes that join uneven values, and of the nodes behind.

    Args:
        index: The float graph.
        plan: Quantized parts without an exclusion.
        activations: Their integer type, which says how many steps there are.
        observed: Observations at calibration.

    Returns:
        Nodes that this type is too coarse for; empty where only the inputs of the compute are
        quantized.
    """
    steps = 2.0 ** (8 * np.dtype(activations).itemsize)
    found: set[str] = set()
    quantized = {node.position: node.name for node in plan.nodes}
    for position, name in quantized.items():
        node = index.graph.node[position]
        if node.op_type != "Concat":
            continue
        sizes = [
            max(abs(observed[tensor].low), abs(observed[tensor].high))
            for tensor in node.input
            if tensor in observed
        ]
        after = _moves_to_outputs(index, position)
        if after is None or len(sizes) < 2 or not min(sizes):
            continue
        if max(sizes) / min(sizes) > steps / _FEWEST_STEPS:
            found.add(name)
            found |= {quantized[p] for p in after if p in quantized}
    return frozenset(found)


def _moves_to_outputs(index: GraphIndex, position: int) -> frozenset[int] | None:
    """Return the nodes after a node, if all only move its values to the graph's outputs."""
    nodes = index.graph.node

    def readers(place: int) -> list[int]:
        return [reader for name in nodes[place].output for reader in index.consumers.get(name, [])]

    after = reached(readers(position), readers)
    made = {name for place in (position, *after) for name in nodes[place].output}
    only_moves = all(facts(nodes[place].op_type).one_scale for place in after)
    return frozenset(after) if only_moves and index.body_reads.isdisjoint(made) else None
