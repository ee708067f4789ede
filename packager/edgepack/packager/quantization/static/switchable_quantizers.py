"""Model with a switch for every node's quantization.

Each quantized node of a plan becomes an `If` with the node unchanged in the first branch, and in
the other branch the node with its inputs, weights and outputs rounded. So any subset of nodes can
be tried by an inference, without building or loading a model, at the cost of the rounding.
`switchable_model` runs the model.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.edits import MICROSOFT, import_domain, refill
from edgepack.packager.graph.held_weights import WeightsFile
from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.quantization.static.assign import Assignment
from edgepack.packager.quantization.static.plan import NodePlan, Plan, WeightUse
from edgepack.packager.quantization.static.scales import Scale, quantize, restore
from edgepack.tasks.arrays import Tensor

SWITCHES = "edgepack/switches"
"""Graph input that switches the nodes."""

_ROUNDED = "/if-rounded"
_PLAIN = "/if-plain"


class SwitchableGraph(msgspec.Struct, frozen=True, kw_only=True):
    """A model with switches, and the places of the switches.

    Attributes:
        model: The model; its input `SWITCHES` is bool (nodes,), in the order of the plan.
        switches: For each switched node the index of its first new node, and the number of its
            switch; ascending.
    """

    model: onnx.ModelProto
    switches: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class SwitchWriter:
    """Puts every node's quantization behind a switch.

    Attributes:
        model: The float model; not changed.
        index: Its graph, indexed.
        plan: The quantized parts.
        scales: With which scales.
        rounded: Takes the rounded weights.
        initializers: Initializers made so far.
    """

    model: onnx.ModelProto
    index: GraphIndex
    plan: Plan
    scales: Assignment
    rounded: WeightsFile
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def write(self) -> SwitchableGraph:
        """Return a new model, and where its switches are."""
        nodes: list[onnx.NodeProto] = []
        switches: list[tuple[int, int]] = []
        reading = {plan.position: plan for plan in self.plan.nodes}
        writing = {
            plan.position if plan.rectifier is None else plan.rectifier: plan
            for plan in self.plan.nodes
        }
        numbers = {plan.name: number for number, plan in enumerate(self.plan.nodes)}
        for position, node in enumerate(self.index.graph.node):
            read, written = reading.get(position), writing.get(position)
            owner = read or written
            if owner is None:
                nodes.append(node)
                continue
            rounded = self._rounded(node, read, written)
            switches.append((len(nodes), numbers[owner.name]))
            nodes += _switch(node, numbers[owner.name], rounded)
        return SwitchableGraph(model=self._assemble(nodes), switches=tuple(switches))

    def _rounded(
        self, original: onnx.NodeProto, read: NodePlan | None, written: NodePlan | None
    ) -> list[onnx.NodeProto]:
        """Return the node unchanged quantized; its outputs end in `_ROUNDED`."""
        node = deepcopy(original)
        before: list[onnx.NodeProto] = []
        if read is not None:
            for i, name in read.activations:
                scale = self.scales.of(read, name)
                constant = self.index.constant(name)
                if constant is None:
                    node.input[i] = f"{node.output[0]}/in{i}"
                    before += self._round(name, scale, node.input[i])
                else:
                    node.input[i] = self._constant(f"{name}/{scale.kind.dtype}", constant, scale)
        if read is not None and read.weight is not None:
            i, use = read.weight
            node.input[i] = self._weight(use)
        after: list[onnx.NodeProto] = []
        for i, name in enumerate(original.output):
            if written is not None and name in written.outputs:
                node.output[i] = f"{name}/float"
                scale = self.scales.of(written, name)
                after += self._round(node.output[i], scale, f"{name}{_ROUNDED}")
            elif name:
                node.output[i] = f"{name}{_ROUNDED}"
        return [*before, node, *after]

    def _weight(self, use: WeightUse) -> str:
        integers = self.scales.round_weight(use, self.index.values(use.name))
        return self._restored(f"{use.name}/axis{use.axis}", integers, self.scales.weights[use])

    def _constant(self, name: str, values: Tensor, scale: Scale) -> str:
        return self._restored(name, quantize(values.astype(np.float32), scale), scale)

    def _restored(self, name: str, integers: npt.NDArray[np.integer], scale: Scale) -> str:
        if name not in self.initializers:
            self.initializers[name] = self.rounded.kept(name, restore(integers, scale))
        return name

    def _round(self, name: str, scale: Scale, output: str) -> list[onnx.NodeProto]:
        parameters = []
        for what, value in (("scale", scale.scale), ("zero_point", scale.zero_point)):
            parameter = f"{name}/rounding/{scale.kind.dtype}/{what}"
            self.initializers[parameter] = numpy_helper.from_array(value, parameter)
            parameters.append(parameter)
        integers = f"{output}/integers"
        make = partial(helper.make_node, domain=MICROSOFT)
        return [
            make("QuantizeLinear", [name, *parameters], [integers], f"{output}/q"),
            make("DequantizeLinear", [integers, *parameters], [output], f"{output}/dq"),
        ]

    def _assemble(self, nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
        result = deepcopy(self.model)
        del result.graph.value_info[:]
        refill(result.graph.node, nodes)
        result.graph.initializer.extend(self.initializers.values())
        for number in range(len(self.plan.nodes)):
            position = numpy_helper.from_array(np.array(number, dtype=np.int64))
            position.name = f"{SWITCHES}/{number}/position"
            result.graph.initializer.append(position)
        switched = helper.make_tensor_value_info(SWITCHES, TensorProto.BOOL, [len(self.plan.nodes)])
        result.graph.input.append(switched)
        import_domain(result, MICROSOFT)
        return result


def _switch(
    node: onnx.NodeProto, number: int, rounded: Sequence[onnx.NodeProto]
) -> list[onnx.NodeProto]:
    """Take the rounded nodes where its switch is on, and the node unchanged where not."""
    plain = deepcopy(node)
    outputs = [name for name in node.output if name]
    for i, name in enumerate(node.output):
        plain.output[i] = f"{name}{_PLAIN}" if name else ""
    name = f"{outputs[0]}/switch"
    return [
        helper.make_node("Gather", [SWITCHES, f"{SWITCHES}/{number}/position"], [name], name),
        helper.make_node(
            "If",
            [name],
            outputs,
            f"{name}/if",
            then_branch=_branch(f"{name}/rounded", rounded, [f"{o}{_ROUNDED}" for o in outputs]),
            else_branch=_branch(f"{name}/plain", [plain], [f"{o}{_PLAIN}" for o in outputs]),
        ),
    ]


def _branch(name: str, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> onnx.GraphProto:
    return helper.make_graph(
        list(nodes), name, [], [helper.make_empty_tensor_value_info(output) for output in outputs]
    )
