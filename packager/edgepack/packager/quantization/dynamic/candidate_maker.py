"""Candidates with 8-bit weights and dynamically quantized activations.

Nodes in the bodies of control flow are included. The calibration samples are not read.

Integer forms of MatMul, Gemm and LSTM with dynamically quantized inputs.

MatMul and Gemm become DynamicQuantizeLinear, MatMulInteger and a multiplication by the scales,
which ONNX Runtime fuses into a single kernel; LSTM becomes com.microsoft's DynamicQuantizeLSTM.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from copy import deepcopy

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import MICROSOFT, import_domain, refill
from edgepack.packager.graph.queries import attribute, is_standard, used_names
from edgepack.packager.graph.workload import Workload, weight_bytes
from edgepack.packager.profiles.pass_settings import QuantizeDynamic
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateSpec,
    QuantizationMethod,
)
from edgepack.packager.quantization.one_at_a_time import OneAtATimeMaker
from edgepack.packager.quantization.products import Product, as_product
from edgepack.tasks.arrays import Singles, Tensor

Constants = Mapping[str, onnx.TensorProto]


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The graph of a model, or the body of a control-flow node.

    Attributes:
        label: "" for the graph itself; else the node and the branch, `if_1/then_branch`.
        graph: The graph.
        constants: Initializers and values of Constant nodes, including outer graphs.
    """

    label: str
    graph: onnx.GraphProto
    constants: Constants

    def name(self, position: int) -> str:
        """Return a node's name, unique in the model."""
        node = self.graph.node[position]
        if not self.label:
            return str(node.name)
        return f"{self.label}/{node.name or node.op_type}_{position}"


class DynamicCandidateMaker(OneAtATimeMaker[QuantizeDynamic]):
    """Candidate maker for a float model."""

    methods = (QuantizationMethod(base="dynamic"),)

    def __post_init__(self) -> None:
        # How often a body runs is not known, and steps of an LSTM neither: weights tell.
        self._loads = {
            scope.name(position): Workload(
                weight_bytes=weight_bytes(scope.graph.node[position], scope.constants)
            )
            for scope in scopes(self.model.graph)
            for position in self._lowerable(scope)
        }
        self.names = tuple(self._loads)

    def build(self, spec: CandidateSpec) -> BuiltCandidate:
        """Build a candidate; see `CandidateMaker`."""
        lowered = self._lowered(spec)
        result = deepcopy(self.model)
        # Inner bodies first: writing an outer graph copies its nodes, bodies included.
        for scope in reversed(list(scopes(result.graph))):
            self._write(scope, frozenset(lowered))
        drop_unread_constants(result)
        import_domain(result, MICROSOFT if lowered else "")
        return BuiltCandidate(model=result, lowered=lowered)

    def _lowerable(self, scope: Scope) -> Iterator[int]:
        for position, node in enumerate(scope.graph.node):
            if node.op_type in self.settings.ops and (
                is_lstm(node, scope.constants)
                or as_product(node, position, scope.constants) is not None
            ):
                yield position

    def _write(self, scope: Scope, lowered: frozenset[str]) -> None:
        writer = DynamicWriter(
            settings=self.settings,
            prefix=f"{scope.label}/" if scope.label else "",
            constants=scope.constants,
        )
        graph = scope.graph
        nodes: list[onnx.NodeProto] = []
        for position, node in enumerate(graph.node):
            name = scope.name(position)
            product = as_product(node, position, scope.constants)
            if name not in lowered:
                nodes.append(node)
            elif product is not None:
                nodes.extend(writer.product(name, product, node.output[0]))
            else:
                nodes.append(writer.lstm(name, node))
        if writer.made:
            refill(graph.node, nodes)
            graph.initializer.extend(writer.made)


_UNSIGNED_MIDDLE = 128
_LSTM_PLACES = 8
"""Inputs of LSTM; scales and zero points come after them."""


def is_lstm(node: onnx.NodeProto, constants: Constants) -> bool:
    """Return True if a node is an LSTM with constant weights that has an integer form."""
    return (
        node.op_type == "LSTM"
        and is_standard(node)
        and all(
            name in constants and constants[name].data_type == TensorProto.FLOAT
            for name in node.input[1:3]
        )
        and not attribute(node, "layout", 0)
    )


class DynamicWriter(msgspec.Struct, kw_only=True):
    """Writes the nodes of a graph or body.

    Attributes:
        settings: The profile's pass.
        prefix: Prefix of new tensors' names, unique per body.
        constants: Constants visible to nodes here.
        made: New initializers.
    """

    settings: QuantizeDynamic
    prefix: str
    constants: Constants
    made: list[onnx.TensorProto] = msgspec.field(default_factory=list)
    _rounded: dict[str, str] = msgspec.field(default_factory=dict)

    def product(self, name: str, product: Product, output: str) -> Iterator[onnx.NodeProto]:
        """Yield MatMul or Gemm in integers.

        Args:
            name: Name of the node in the whole model.
            product: The node.
            output: Name of its output.
        """
        weight = np.asarray(stored_tensors.values(self.constants[product.weight]), dtype=np.float32)
        matrix = (weight.T if product.is_transposed else weight) * np.float32(product.factor)
        codes, scale, zero_point = self._quantize(matrix, axis=0)
        parts = [
            self._store(f"{name}/{part}", value)
            for part, value in (("codes", codes), ("scale", scale), ("zero_point", zero_point))
        ]
        if product.data not in self._rounded:
            label = f"{self.prefix}{product.data}/dynamic"
            self._rounded[product.data] = label
            made = [label, f"{label}/scale", f"{label}/zero_point"]
            yield helper.make_node("DynamicQuantizeLinear", [product.data], made, name=label)
        data = self._rounded[product.data]
        total, wide, scales = f"{name}/sums", f"{name}/wide", f"{name}/scales"
        yield helper.make_node(
            "MatMulInteger", [data, parts[0], f"{data}/zero_point", parts[2]], [total], name=name
        )
        yield helper.make_node("Cast", [total], [wide], name=wide, to=TensorProto.FLOAT)
        yield helper.make_node("Mul", [f"{data}/scale", parts[1]], [scales], name=scales)
        result = f"{name}/product" if product.bias else output
        yield helper.make_node("Mul", [wide, scales], [result], name=f"{name}/rescale")
        if product.bias:
            yield helper.make_node("Add", [result, product.bias], [output], name=f"{name}/bias")

    def lstm(self, name: str, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return LSTM in integers; arguments as for `product`."""
        result = deepcopy(node)
        result.op_type, result.domain = "DynamicQuantizeLSTM", MICROSOFT
        inputs = list(node.input) + [""] * (_LSTM_PLACES - len(node.input))
        for place, part in ((1, "input"), (2, "recurrent")):
            values = stored_tensors.values(self.constants[node.input[place]])
            turned = np.asarray(values, dtype=np.float32).transpose(0, 2, 1)
            codes, scale, zero_point = self._quantize(turned, axis=1)
            directions = len(turned)
            shape = (directions, -1) if self.settings.per_channel else (directions,)
            inputs[place] = self._store(f"{name}/{part}", codes)
            inputs.append(self._store(f"{name}/{part}/scale", scale.reshape(shape)))
            points = np.full(scale.reshape(shape).shape, zero_point, dtype=codes.dtype)
            inputs.append(self._store(f"{name}/{part}/zero_point", points))
        result.input[:] = inputs
        refill(result.attribute, (entry for entry in node.attribute if entry.name != "layout"))
        return result

    def _quantize(self, weight: Singles, *, axis: int) -> tuple[Tensor, Singles, Tensor]:
        """Return codes, scales and the zero point, with a symmetric range.

        Args:
            weight: The output channel is the last axis.
            axis: The axis along which inputs are added up.
        """
        axes = (axis,) if self.settings.per_channel else tuple(range(axis, weight.ndim))
        most = np.float32(63 if self.settings.reduce_range else 127)
        scale = np.abs(weight).max(axis=axes, keepdims=True) / most
        scale = np.where(scale > 0.0, scale, np.float32(1.0)).astype(np.float32)
        codes = np.clip(np.rint(weight / scale), -most, most)
        scale = np.squeeze(scale, axis=axes)
        if self.settings.weights == "int8":
            return codes.astype(np.int8), scale, np.array(0, dtype=np.int8)
        shifted = (codes + _UNSIGNED_MIDDLE).astype(np.uint8)
        return shifted, scale, np.array(_UNSIGNED_MIDDLE, dtype=np.uint8)

    def _store(self, name: str, values: Tensor) -> str:
        self.made.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name


def scopes(graph: onnx.GraphProto) -> Iterator[Scope]:
    """Yield the graph itself, then its bodies, outer bodies first."""
    yield from _scopes(graph, "", {})


def _scopes(graph: onnx.GraphProto, label: str, outer: Constants) -> Iterator[Scope]:
    own = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            own[node.output[0]] = node.attribute[0].t
    scope = Scope(label=label, graph=graph, constants=ChainMap(own, dict(outer)))
    yield scope
    for position, node in enumerate(graph.node):
        for entry in node.attribute:
            bodies = [entry.g] if entry.HasField("g") else list(entry.graphs)
            for number, body in enumerate(bodies):
                branch = entry.name if len(bodies) == 1 else f"{entry.name}_{number}"
                yield from _scopes(body, f"{scope.name(position)}/{branch}", scope.constants)


def drop_unread_constants(model: onnx.ModelProto) -> None:
    """Remove initializers and Constant nodes that nothing reads, in place, in bodies too."""
    read = used_names(model.graph)
    for scope in scopes(model.graph):
        graph = scope.graph
        refill(graph.initializer, (tensor for tensor in graph.initializer if tensor.name in read))
        if any(node.op_type == "Constant" and node.output[0] not in read for node in graph.node):
            kept = (n for n in graph.node if n.op_type != "Constant" or n.output[0] in read)
            refill(graph.node, kept)
