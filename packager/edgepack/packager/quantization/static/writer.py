"""Writes a plan with its scales into the graph, as Quantize/DequantizeLinear pairs.

The written nodes:
- an activation made by a quantized node: node -> Q -> DQ -> every reader;
- if a reader's type differs from the producer's: … Q -> DQ -> Q -> DQ -> that reader, with a DQ
  that nothing else reads, so that providers make a single conversion of DQ -> Q;
- an activation made elsewhere (graph input, float node): Q -> DQ -> the quantized readers only,
  a pair for each type;
- constants: integers in the file, and a DQ;
- a bias: int32 with scale activation * weight, and a DQ;
- a Relu or Clip that saturation already does is left out.
Graph inputs and outputs keep their names and stay float.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph.edits import MICROSOFT, import_domain, with_contents
from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.queries import GraphIndex, used_names
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.quantization.static.assign import Assignment
from edgepack.packager.quantization.static.plan import NodePlan, Plan, WeightUse
from edgepack.packager.quantization.static.scales import FloatArray, Scale, quantize
from edgepack.tasks.arrays import Tensor

_FIRST_OPSET_WITH_16_BIT = 21

_WITH_INFERENCE = ("", "ai.onnx", MICROSOFT)
"""Domains whose shapes a session infers. What follows a Scaler of scikit-learn's has none there,
and QNN takes no node without a shape: of what others make, the shapes are written down."""


def absorbs_rectifier(index: GraphIndex, node: NodePlan, scales: Assignment) -> bool:
    """Return True if the output's integers end where the rectifier clips, give or take half a
    step.
    """
    if node.rectifier is None or not node.outputs:
        return False
    low, high = _clip_bounds(index, index.graph.node[node.rectifier])
    scale = scales.of(node, node.outputs[0])
    slack = float(scale.scale) / 2
    return scale.lowest_real >= low - slack and scale.highest_real <= high + slack


@dataclass
class QdqWriter:
    """Makes the quantized model.

    Attributes:
        model: The float model; not changed.
        index: Its graph, indexed.
        plan: The quantized parts.
        scales: With which scales.
        settings: The profile's quantize pass.
    """

    model: onnx.ModelProto
    index: GraphIndex
    plan: Plan
    scales: Assignment
    settings: Quantize

    def __post_init__(self) -> None:
        has_high_precision = bool(self.scales.high_precision)
        self._domain = _domain(self.settings, opset_of(self.model), has_high_precision)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._written: dict[tuple[object, ...], str] = {}
        self._makers = {name: node for node in self.plan.nodes for name in node.outputs}

    def write(self) -> onnx.ModelProto:
        """Return a new model."""
        graph = self.index.graph
        plans = {node.position: node for node in self.plan.nodes}
        clipped = {node.rectifier: node for node in self.plan.nodes if node.rectifier is not None}
        left_out = {
            position
            for position, node in clipped.items()
            if absorbs_rectifier(self.index, node, self.scales)
        }
        for position, original in enumerate(graph.node):
            if position in left_out:
                self._follow_outputs(clipped[position])
                continue
            node = deepcopy(original)
            plan = plans.get(position)
            made_by = clipped.get(position)
            if made_by is None and plan is not None:
                self._quantize_inputs(node, plan)
                if plan.rectifier is None:
                    made_by = plan
                elif plan.rectifier in left_out:
                    node.output[0] = f"{plan.outputs[0]}/float"
            for i, name in enumerate(node.output):
                if made_by is not None and name in made_by.outputs:
                    node.output[i] = f"{name}/float"
            self._nodes.append(node)
            if made_by is not None:
                self._follow_outputs(made_by)
        return self._assemble()

    def _follow_outputs(self, plan: NodePlan) -> None:
        for name in plan.outputs:
            scale = self.scales.of(plan, name)
            integers = self._quantize_node(f"{name}/float", name, scale)
            self._dequantize_node(integers, name, scale, name)

    def _quantize_inputs(self, node: onnx.NodeProto, plan: NodePlan) -> None:
        for i, name in plan.activations:
            node.input[i] = self._activation(plan, name)
        if plan.weight is not None:
            position, use = plan.weight
            node.input[position] = self._weight(use)
            if plan.bias is not None:
                node.input[plan.bias[0]] = self._bias(plan, use)

    def _activation(self, plan: NodePlan, name: str) -> str:
        maker = self._makers.get(name)
        if maker is not None and maker.is_high_precision == plan.is_high_precision:
            return name  # its producer is followed by Q and DQ
        key = ("activation", name, plan.is_high_precision)
        if key not in self._written:
            scale = self.scales.of(plan, name)
            is_plain = maker is None and not plan.is_high_precision
            label = name if is_plain else f"{name}/{scale.kind.dtype}"
            constant = self.index.constant(name)
            if constant is not None:
                integers = self._constant(f"{label}/q", quantize(_as_float(constant), scale))
            elif maker is None:
                integers = self._quantize_node(name, label, scale)
            else:
                made = self.scales.of(maker, name)
                source = self._dequantize_node(f"{name}/q", name, made, f"{label}/from")
                integers = self._quantize_node(source, label, scale)
            self._written[key] = self._dequantize_node(integers, label, scale, f"{label}/dq")
        return self._written[key]

    def _weight(self, use: WeightUse) -> str:
        key = ("weight", use)
        if key not in self._written:
            scale = self.scales.weights[use]
            label = use.name if use.axis is None else f"{use.name}/axis{use.axis}"
            rounded = self.scales.round_weight(use, self.index.values(use.name))
            integers = self._constant(f"{label}/w", rounded)
            self._written[key] = self._dequantize_node(
                integers, f"{label}/w", scale, f"{label}/wdq"
            )
        return self._written[key]

    def _bias(self, plan: NodePlan, use: WeightUse) -> str:
        data = self.scales.of(plan, plan.activations[0][1])
        weight = self.scales.weights[use]
        name = plan.bias[1] if plan.bias else ""
        factor = (data.scale * weight.scale).astype(np.float32)
        key = ("bias", name, factor.tobytes())
        if key not in self._written:
            values = self.index.values(name)
            integers = np.rint(_as_float(values).astype(np.float64) / factor).astype(np.int32)
            label = f"{plan.name}/bias"
            inputs = [
                self._constant(f"{label}/q", integers),
                self._constant(f"{label}/scale", factor),
                self._constant(f"{label}/zero_point", np.zeros(factor.shape, dtype=np.int32)),
            ]
            axis = None if weight.axis is None else 0
            self._written[key] = self._convert(
                "DequantizeLinear", inputs, f"{label}/dq", label, axis
            )
        return self._written[key]

    def _quantize_node(self, source: str, label: str, scale: Scale) -> str:
        inputs = [source, *self._parameters(label, scale)]
        return self._convert("QuantizeLinear", inputs, f"{label}/q", label)

    def _dequantize_node(self, integers: str, label: str, scale: Scale, output: str) -> str:
        inputs = [integers, *self._parameters(label, scale)]
        return self._convert("DequantizeLinear", inputs, output, output, scale.axis)

    def _convert(
        self, op_type: str, inputs: list[str], output: str, label: str, axis: int | None = None
    ) -> str:
        name = f"{label}/{op_type}"
        more: dict[str, Any] = {} if axis is None else {"axis": axis}
        self._nodes.append(
            helper.make_node(op_type, inputs, [output], name, domain=self._domain, **more)
        )
        return output

    def _parameters(self, label: str, scale: Scale) -> tuple[str, str]:
        key = ("parameters", label)
        if key not in self._written:
            self._constant(f"{label}/scale", scale.scale)
            self._constant(f"{label}/zero_point", scale.zero_point)
            self._written[key] = label
        return f"{label}/scale", f"{label}/zero_point"

    def _constant(self, name: str, values: Tensor) -> str:
        self._initializers.append(numpy_helper.from_array(np.array(values, order="C"), name))
        return name

    def _assemble(self) -> onnx.ModelProto:
        graph = self.model.graph
        result = with_contents(self.model, self._nodes, graph.input, graph.output)
        result.producer_name = self.model.producer_name
        import_domain(result, self._domain)
        foreign = {
            name for n in self._nodes if n.domain not in _WITH_INFERENCE for name in n.output
        }
        result.graph.value_info.extend(v for v in graph.value_info if v.name in foreign)
        used = used_names(result.graph)
        kept = (t for t in (*graph.initializer, *self._initializers) if t.name in used)
        result.graph.initializer.extend(kept)
        return result


def _domain(settings: Quantize, opset: int, has_high_precision: bool) -> str:
    wide = settings.activations in ("uint16", "int16") or has_high_precision
    if settings.qdq_domain == "auto":
        return MICROSOFT if wide and opset < _FIRST_OPSET_WITH_16_BIT else ""
    return MICROSOFT if settings.qdq_domain == "microsoft" else ""


def _as_float(values: Tensor) -> FloatArray:
    return values.astype(np.float32)


def _clip_bounds(index: GraphIndex, node: onnx.NodeProto) -> tuple[float, float]:
    low, high = (0.0, np.inf) if node.op_type == "Relu" else (-np.inf, np.inf)
    if node.op_type == "Clip":
        for position, name in enumerate(node.input[1:3]):
            values = index.constant(name) if name else None
            if values is not None and position == 0:
                low = float(values.reshape(()))
            elif values is not None:
                high = float(values.reshape(()))
    return low, high
