"""One float model with its calibration: plans, scales and quantized models for any range method."""

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import onnx

from edgepack.packager.graph.queries import GraphIndex, index_graph
from edgepack.packager.profiles.calibration_methods import needs_histogram
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.calibration import Calibration
from edgepack.packager.quantization.static.assign import Assignment, assign_scales
from edgepack.packager.quantization.static.chosen_scales import ChosenScales
from edgepack.packager.quantization.static.gptq_rounding import Rounder, to_nearest
from edgepack.packager.quantization.static.high_precision_activations import find_followers
from edgepack.packager.quantization.static.plan import Plan, make_plan
from edgepack.packager.quantization.static.switchable_model import GatedModel
from edgepack.packager.quantization.static.uneven import uneven_tail
from edgepack.packager.quantization.static.writer import absorbs_rectifier, write_qdq
from edgepack.packager.tensors.observations import Observation
from edgepack.packager.tensors.sequence import Samples

_SHOWN = 3


class Spared(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are not quantized as the others are.

    Attributes:
        float_nodes: Names of those that stay float.
        raised: Names of those that are raised; what stays float is not.
    """

    float_nodes: Collection[str] = ()
    raised: Collection[str] = ()


NOTHING_SPARED = Spared()


class CalibratedModel:
    """A float model that is calibrated when it is first asked for, and then never again.

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
        self.index = index_graph(model.graph)
        self._settings = settings
        self._chosen = ChosenScales(self.index, settings)
        everything = make_plan(self.index, settings, ())
        self.names = everything.names
        self.followers = find_followers(self.index, everything.positions)
        self._rectified = make_plan(self.index, settings, (), apart=self.names)
        observed = dict.fromkeys((*everything.activations, *self._rectified.activations))
        self._calibration = Calibration(
            model,
            [name for name in observed if name not in self.index.initializers],
            samples,
            work_dir=work_dir,
            progress=progress,
        )

    def plan(self, ranges: str, spared: Spared, index: GraphIndex) -> tuple[Plan, Assignment]:
        """What is quantized, and with which scales.

        A rectifier that saturation cannot take over must be quantized by itself where every
        operator has to be an integer one. What joins values of very different size at the end
        is spared too, see `uneven_tail`, and so is what reads or makes infinite values.

        Args:
            ranges: How observed values become ranges.
            spared: Nodes that stay float, and that are raised.
            index: The graph to plan for: the model's own, or one with other constants.
        """
        settings = self._settings
        observed = self.observe(ranges)
        everything = make_plan(index, settings, ())
        uneven = uneven_tail(index, everything, settings.activations, observed)
        float_nodes, raised_nodes = {*spared.float_nodes}, {*spared.raised}
        if settings.can_raise:
            raised_nodes |= uneven
            uneven = uneven_tail(index, everything, settings.high_precision_activations, observed)
        float_nodes |= uneven | self._beside(self._endless(observed))
        plan = make_plan(index, settings, float_nodes, raised_nodes=raised_nodes)
        chosen = self._chosen if index is self.index else ChosenScales(index, settings)
        scales = assign_scales(index, plan, settings, observed, ranges, chosen)
        if settings.ops == "compute" or settings.activation_symmetric:
            return plan, scales
        apart = [
            node.name
            for node in plan.nodes
            if node.rectifier is not None and not absorbs_rectifier(index, node, scales)
        ]
        if not apart:
            return plan, scales
        plan = make_plan(index, settings, float_nodes, raised_nodes=raised_nodes, apart=apart)
        return plan, assign_scales(index, plan, settings, observed, ranges, chosen)

    def quantize(
        self,
        ranges: str,
        spared: Spared,
        model: onnx.ModelProto,
        rounder: Rounder = to_nearest,
    ) -> tuple[onnx.ModelProto, Plan]:
        """The quantized model, and what is quantized in it.

        Args:
            ranges: How observed values become ranges.
            spared: Nodes that stay float, and that are raised.
            model: The float model: the calibrated one, or one that differs in constants only.
            rounder: How its weights are rounded.
        """
        index = self.index if model is self.model else index_graph(model.graph)
        plan, scales = self.plan(ranges, spared, index)
        return write_qdq(model, index, plan, rounder(plan, scales), self._settings), plan

    def gate(
        self,
        ranges: str,
        path: Path,
        spared: Spared = NOTHING_SPARED,
        rounder: Rounder = to_nearest,
    ) -> GatedModel:
        """The model with every node's quantization behind a gate; `path` is where it is written."""
        plan, scales = self.plan(ranges, spared, self.index)
        return GatedModel(self.model, self.index, plan, rounder(plan, scales), path)

    def describe_endless(self, ranges: str) -> tuple[str, ...]:
        """A note on nodes that stay float since no scale holds what they read or make."""
        tensors = self._endless(self.observe(ranges))
        nodes = self._beside(tensors)
        if not nodes:
            return ()
        shown = ", ".join(tensors[:_SHOWN]) + (" …" if len(tensors) > _SHOWN else "")
        return (
            f"{len(nodes)} nodes stay float: they read or make infinite values, which no scale "
            f"holds ({shown}).",
        )

    def _endless(self, observed: Mapping[str, Observation]) -> tuple[str, ...]:
        """Tensors that are infinite somewhere, in graph order."""
        return tuple(name for name, seen in observed.items() if not seen.is_finite)

    def _beside(self, tensors: Collection[str]) -> set[str]:
        """Names of the nodes that would quantize one of these tensors."""
        return {
            node.name for node in self._rectified.nodes if not set(tensors).isdisjoint(node.tensors)
        }

    def observe(self, ranges: str) -> Mapping[str, Observation]:
        """What calibration saw, as far as the method needs it."""
        if needs_histogram(ranges):
            return self._calibration.histograms()
        return self._calibration.bounds()
