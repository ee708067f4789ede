"""One model in which every node's quantization can be switched on and off from outside.

Each node that a plan quantizes reads `Where(gate, quantized, float)` in place of its inputs, and
is followed by the same for its outputs. So any subset of nodes can be tried by an inference,
without building or loading anything.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.model_files import open_on_cpu, save_model
from edgepack.packager.graph.questions import GraphIndex
from edgepack.packager.judging.measure import Outputs
from edgepack.packager.quantization.assign import Assignment
from edgepack.packager.quantization.plan import NodePlan, Plan, WeightUse
from edgepack.packager.quantization.scales import Scale, quantize, restore
from edgepack.packager.samples.sequence import Feeds

_GATES = "edgepack/gates"
_CONTRIB = "com.microsoft"


class GatedModel:
    """A model whose nodes' quantization is switched by a vector of gates.

    Args:
        model: The float model.
        index: Its graph, indexed.
        plan: What is quantized.
        scales: With which scales.
        path: Where the model is written; its folder must exist.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        index: GraphIndex,
        plan: Plan,
        scales: Assignment,
        path: Path,
    ) -> None:
        self.names = tuple(node.name for node in plan.nodes)
        save_model(_Gating(model, index, plan, scales).build(), path)
        self._session = open_on_cpu(path, optimize=False)
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._inputs = {value.name for value in self._session.get_inputs()}

    def run(self, feeds: Feeds, quantized: npt.NDArray[np.bool_]) -> Outputs:
        """One inference with a subset of nodes quantized.

        Args:
            feeds: The sample.
            quantized: bool (nodes,), in the order of `names`.
        """
        used = {name: value for name, value in feeds.items() if name in self._inputs}
        values = self._session.run(None, {**used, _GATES: quantized})
        return dict(zip(self._outputs, values, strict=True))


class _Gating:
    def __init__(
        self, model: onnx.ModelProto, index: GraphIndex, plan: Plan, scales: Assignment
    ) -> None:
        self._model = model
        self._index = index
        self._plan = plan
        self._scales = scales
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._made: dict[object, str] = {}

    def build(self) -> onnx.ModelProto:
        inputs = {node.position: (number, node) for number, node in enumerate(self._plan.nodes)}
        outputs = {
            node.position if node.rectifier is None else node.rectifier: (number, node)
            for number, node in enumerate(self._plan.nodes)
        }
        for position, original in enumerate(self._index.graph.node):
            node = onnx.NodeProto()
            node.CopyFrom(original)
            if position in inputs:
                self._gate_inputs(node, *inputs[position])
            quantized = outputs[position][1].outputs if position in outputs else ()
            for i, name in enumerate(node.output):
                if name in quantized:
                    node.output[i] = f"{name}/float"
            self._nodes.append(node)
            for name in quantized:
                number = outputs[position][0]
                rounded = self._round(f"{name}/float", self._scales.activations[name])
                self._where(number, rounded, f"{name}/float", name)
        return self._assemble()

    def _gate_inputs(self, node: onnx.NodeProto, number: int, plan: NodePlan) -> None:
        for i, name in plan.activations:
            scale = self._scales.activations[name]
            constant = self._index.constant(name)
            if constant is None:
                rounded = self._round(name, scale)
            else:
                rounded = self._constant(f"{name}/rounded", constant, scale)
            node.input[i] = self._where(number, rounded, name, f"{plan.name}/in{i}")
        if plan.weight is not None:
            i, use = plan.weight
            node.input[i] = self._where(number, self._weight(use), use.name, f"{plan.name}/in{i}")

    def _weight(self, use: WeightUse) -> str:
        values = self._index.constant(use.name)
        if values is None:
            raise KeyError(f"{use.name} is no initializer")
        return self._constant(f"{use.name}/axis{use.axis}", values, self._scales.weights[use])

    def _constant(self, name: str, values: npt.NDArray[np.generic], scale: Scale) -> str:
        if name not in self._made:
            rounded = restore(quantize(values.astype(np.float32), scale), scale)
            self._initializers.append(numpy_helper.from_array(rounded, name))
            self._made[name] = name
        return self._made[name]

    def _round(self, name: str, scale: Scale) -> str:
        key = ("round", name)
        if key not in self._made:
            label = f"{name}/rounding"
            parameters = [f"{label}/scale", f"{label}/zero_point"]
            self._initializers.append(numpy_helper.from_array(scale.scale, parameters[0]))
            self._initializers.append(numpy_helper.from_array(scale.zero_point, parameters[1]))
            self._add("QuantizeLinear", [name, *parameters], f"{label}/q", _CONTRIB)
            self._add("DequantizeLinear", [f"{label}/q", *parameters], f"{label}/dq", _CONTRIB)
            self._made[key] = f"{label}/dq"
        return self._made[key]

    def _where(self, number: int, rounded: str, plain: str, output: str) -> str:
        gate = f"{_GATES}/{number}"
        if gate not in self._made:
            self._initializers.append(
                numpy_helper.from_array(np.array(number, dtype=np.int64), f"{gate}/number")
            )
            self._made[gate] = self._add("Gather", [_GATES, f"{gate}/number"], gate)
        return self._add("Where", [gate, rounded, plain], output)

    def _add(self, kind: str, inputs: Sequence[str], output: str, domain: str = "") -> str:
        self._nodes.append(
            helper.make_node(kind, list(inputs), [output], name=f"{output}/{kind}", domain=domain)
        )
        return output

    def _assemble(self) -> onnx.ModelProto:
        result = onnx.ModelProto()
        result.CopyFrom(self._model)
        del result.graph.node[:]
        del result.graph.value_info[:]
        result.graph.node.extend(self._nodes)
        result.graph.initializer.extend(self._initializers)
        gates = helper.make_tensor_value_info(_GATES, TensorProto.BOOL, [len(self._plan.nodes)])
        result.graph.input.append(gates)
        if _CONTRIB not in {entry.domain for entry in result.opset_import}:
            result.opset_import.add(domain=_CONTRIB, version=1)
        return result
