"""Runs of a model with switched quantization, with only the parts that a subset of nodes needs.

To rank nodes, each is quantized alone, hundreds of times. All nodes before and next to the
quantized node then compute the same as the float model. So the model is cut into pieces, their
exchanged tensors of float inferences are kept, and a piece with the float model's inputs and
without quantized nodes does not run again. The outputs are the same, bit for bit.

Model with a switch for every node's quantization.

Each quantized node of a plan becomes an `If` with the node unchanged in the first branch, and in
the other branch the node with its inputs, weights and outputs rounded. So any subset of nodes can
be tried by an inference, without building or loading a model, at the cost of the rounding.
`switchable_model` runs the model.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.edits import MICROSOFT, import_domain, refill
from edgepack.packager.graph.held_weights import WeightsFile, save_for_session
from edgepack.packager.graph.model_files import open_on_cpu
from edgepack.packager.graph.pieces import cut
from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.quantization.static.assign import Assignment
from edgepack.packager.quantization.static.plan import NodePlan, Plan, WeightUse
from edgepack.packager.quantization.static.scales import Scale, quantize, restore
from edgepack.packager.tensors.sequence import Feeds, digest_of
from edgepack.tasks.arrays import Bools, Outputs, Tensor

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
            values = numpy_helper.from_array(restore(integers, scale), name)
            self.initializers[name] = self.rounded.kept(values)
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


_MOST_PIECES = 8
"""With 8 of equal cost 9/16 of a model run on average; each has threads and memory of its own."""

_FEWEST_NODES = 4
"""Switched nodes of a piece: below, a model is too small for it to be worth several sessions."""

_MOST_KEPT_RUNS = 4
"""Float inferences of which it is kept what pieces exchange, the last ones: nodes are measured on
no more samples at a time (`ranking`)."""

_MOST_KEPT_BYTES = 128_000_000
"""What they may hold together."""


class SwitchableModel:
    """A model with a vector of switches for its nodes' quantization.

    Args:
        model: The float model.
        index: Its graph, indexed.
        plan: The quantized parts.
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
        with WeightsFile(path.with_suffix(".weights")) as rounded:
            switchable = SwitchWriter(model, index, plan, scales, rounded).write()
        self._pieces = _open(switchable, index, path)
        self._outputs = [value.name for value in switchable.model.graph.output]
        self._kept = _KeptRuns()

    def run(self, feeds: Feeds, quantized: Bools) -> Outputs:
        """Run an inference with a subset of nodes quantized.

        Args:
            feeds: The sample.
            quantized: bool (nodes,), in the order of `names`.
        """
        key = digest_of(feeds)
        kept = self._kept.of(key)
        values: dict[str, Tensor] = {**feeds, SWITCHES: quantized}
        differs: set[str] = set()
        for piece in self._pieces:
            is_float = not quantized[piece.switches].any() and differs.isdisjoint(piece.inputs)
            if kept is not None and is_float:
                values |= {name: kept[name] for name in piece.outputs}
            else:
                values |= piece.run(values)
                differs.update(() if is_float else piece.outputs)
        if not quantized.any():
            self._kept.keep(key, {name: values[name] for p in self._pieces for name in p.outputs})
        return {name: values[name] for name in self._outputs}


class _OpenPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece, ready to run.

    Attributes:
        session: Session of the piece.
        switches: Numbers of its switches.
        inputs, outputs: Names of its inputs and outputs, without `SWITCHES`.
    """

    session: onnxruntime.InferenceSession
    switches: list[int]
    inputs: frozenset[str]
    outputs: tuple[str, ...]

    def run(self, values: dict[str, Tensor]) -> Outputs:
        """Return its outputs."""
        used = {entry.name: values[entry.name] for entry in self.session.get_inputs()}
        made = self.session.run(self.outputs, used)
        return dict(zip(self.outputs, made, strict=True))


class _KeptRuns:
    """Cache of tensors between pieces in the last float inferences, limited by memory."""

    def __init__(self) -> None:
        self._runs: dict[bytes, dict[str, Tensor]] = {}

    def of(self, key: bytes) -> dict[str, Tensor] | None:
        return self._runs.get(key)

    def keep(self, key: bytes, values: dict[str, Tensor]) -> None:
        self._runs.pop(key, None)
        self._runs[key] = values
        while len(self._runs) > _MOST_KEPT_RUNS or self._size_bytes() > _MOST_KEPT_BYTES:
            del self._runs[next(iter(self._runs))]

    def _size_bytes(self) -> int:
        return sum(value.nbytes for values in self._runs.values() for value in values.values())


def _open(switchable: SwitchableGraph, index: GraphIndex, path: Path) -> list[_OpenPiece]:
    """Return pieces with as many switched nodes each, as far as that is possible."""
    switches = switchable.switches
    count = min(_MOST_PIECES, max(1, len(switches) // _FEWEST_NODES))
    firsts = [switches[number * len(switches) // count][0] for number in range(1, count)]
    starts = (0, *firsts)
    pieces = cut(switchable.model, starts, index.types)
    bounds = [*starts[: len(pieces)], len(switchable.model.graph.node)]
    opened = []
    for number, piece in enumerate(pieces):
        file = path if len(pieces) == 1 else path.with_stem(f"{path.stem}-{number}")
        save_for_session(piece.model, file)
        opened.append(
            _OpenPiece(
                session=open_on_cpu(file, optimize=False),
                switches=_switches_between(switches, bounds[number], bounds[number + 1]),
                inputs=frozenset(piece.inputs) - {SWITCHES},
                outputs=piece.outputs,
            )
        )
    return opened


def _switches_between(switches: Sequence[tuple[int, int]], start: int, end: int) -> list[int]:
    return [number for position, number in switches if start <= position < end]
