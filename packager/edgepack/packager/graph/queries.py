"""Queries on a graph: producers, readers, and known facts of a tensor."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import onnx
from onnx import helper

from edgepack.packager.graph import stored_tensors
from edgepack.tasks.arrays import Tensor

_T = TypeVar("_T")


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the bodies of a control-flow node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of all inner bodies, each before its own bodies'."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)


def is_standard(it: onnx.NodeProto | onnx.OperatorSetIdProto) -> bool:
    """Return True if a node or an import belongs to the standard operator set."""
    return it.domain in ("", "ai.onnx")


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of an attribute as a Python value; the default if unset."""
    found = (entry for entry in node.attribute if entry.name == name)
    return next(map(helper.get_attribute_value, found), default)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the set attributes of a node by name, as Python values."""
    return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


def reached(starts: Iterable[_T], onward: Callable[[_T], Iterable[_T]]) -> set[_T]:
    """Return all places reachable from the starts, including the starts."""
    found: set[_T] = set()
    waiting = list(starts)
    while waiting:
        place = waiting.pop()
        if place not in found:
            found.add(place)
            waiting.extend(onward(place))
    return found


def used_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the tensors that are read: by nodes, in bodies of control flow, and as
    outputs.
    """
    names = {value.name for value in graph.output}
    return names.union(*(node.input for node in graph.node), names_in_bodies(graph)) - {""}


def names_in_bodies(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the tensors that the bodies of control flow in a graph read."""
    bodies = (body for node in graph.node for body in subgraphs(node))
    return set[str]().union(*map(used_names, bodies))


def own_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the tensors that a graph or a body makes or takes itself.

    A body may use names of the graph around for its own tensors: inside the body the names mean the
    body's tensors.
    """
    names = {value.name for value in graph.input}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(sparse.values.name for sparse in graph.sparse_initializer)
    names.update(name for node in graph.node for name in node.output if name)
    return names


def reads(node: onnx.NodeProto) -> set[str]:
    """Return the names that a node reads, including outer names read by its bodies."""
    return {*node.input, *(name for body in subgraphs(node) for name in outer_reads(body))} - {""}


_ROUND = {"Cast", "Ceil", "Floor", "QuantizeLinear", "Round"}
_MOVE = {"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
_SCALE = {"Add", "Clip", "Div", "Mul", "Sub"}
_PRODUCTS = {"BatchNormalization", "Conv", "ConvTranspose", "DequantizeLinear", "Gemm", "MatMul"}
_QUANTITIES = {"Exp", "HardSigmoid", "Relu", "Sigmoid", "Softplus", "Tanh", *_PRODUCTS}
"""Operators whose results are quantities, other than those of ArgMax, TopK or comparisons."""


def is_rounded_quantity(graph: onnx.GraphProto, name: str) -> bool:
    """Return whether a tensor is a computed quantity that was rounded or quantized."""
    producers = {output: node for node in graph.node for output in node.output}
    is_rounded = False
    while (node := producers.get(name)) is not None and node.op_type in _ROUND | _SCALE | _MOVE:
        is_rounded |= node.op_type in _ROUND
        name = node.input[0]
    return is_rounded and node is not None and node.op_type in _QUANTITIES


def outer_reads(body: onnx.GraphProto) -> set[str]:
    """Return the names that a body of control flow reads from the graph around."""
    names = {value.name for value in body.output}
    return names.union(*map(reads, body.node)) - own_names(body) - {""}


def inputs_behind(graph: onnx.GraphProto, name: str, *, by_value: bool = False) -> tuple[str, ...]:
    """Return the graph inputs that a tensor is computed from, sorted.

    Args:
        graph: The graph.
        name: The tensor.
        by_value: Leave out inputs of which only the shape counts.
    """
    producers = {output: node for node in graph.node for output in node.output}

    def read(tensor: str) -> set[str]:
        node = producers.get(tensor)
        if node is None or (by_value and node.op_type in ("Shape", "Size")):
            return set()
        return reads(node)

    return tuple(sorted(reached([name], read) & {value.name for value in graph.input}))


class GraphIndex(msgspec.Struct, frozen=True, kw_only=True):
    """A graph, indexed by tensor name; valid as long as the graph is not changed.

    Attributes:
        graph: The graph.
        producers: The node that makes a tensor, as an index into `graph.node`.
        consumers: Indices of the nodes that read a tensor, in order, each once.
        initializers: Constant tensors.
        inputs, outputs: Names of the graph's own.
        body_reads: Tensors that the bodies of control flow read.
        types: ONNX element type by tensor, if known.
        shapes: Sizes by tensor; None for an axis that is open; absent where unknown.
    """

    graph: onnx.GraphProto
    producers: dict[str, int] = msgspec.field(default_factory=dict)
    consumers: dict[str, list[int]] = msgspec.field(default_factory=dict)
    initializers: dict[str, onnx.TensorProto] = msgspec.field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    body_reads: frozenset[str] = frozenset()
    types: dict[str, int] = msgspec.field(default_factory=dict)
    shapes: dict[str, tuple[int | None, ...]] = msgspec.field(default_factory=dict)

    def maker(self, name: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor; None of inputs and initializers."""
        position = self.producers.get(name)
        return None if position is None else self.graph.node[position]

    def is_float(self, name: str) -> bool:
        """Return True if a tensor holds 32-bit floats."""
        return self.types.get(name) == onnx.TensorProto.FLOAT

    def values(self, name: str) -> Tensor:
        """Return the values of an initializer.

        Raises:
            KeyError: The initializer does not exist.
        """
        return stored_tensors.values(self.initializers[name])

    def constant(self, name: str) -> Tensor | None:
        """Return the values of an initializer; None for any other tensor."""
        tensor = self.initializers.get(name)
        return None if tensor is None else stored_tensors.values(tensor)


def index_graph(graph: onnx.GraphProto) -> GraphIndex:
    """Index a graph with inferred shapes."""
    index = GraphIndex(
        graph=graph,
        initializers={tensor.name: tensor for tensor in graph.initializer},
        inputs=tuple(value.name for value in graph.input),
        outputs=tuple(value.name for value in graph.output),
        body_reads=frozenset(names_in_bodies(graph)),
    )
    for position, node in enumerate(graph.node):
        for name in node.output:
            if name:
                index.producers[name] = position
        for name in dict.fromkeys(node.input):
            if name:
                index.consumers.setdefault(name, []).append(position)
    for tensor in graph.initializer:
        index.types[tensor.name] = tensor.data_type
        index.shapes[tensor.name] = tuple(tensor.dims)
    for value in (*graph.input, *graph.output, *graph.value_info):
        tensor_type = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            continue
        index.types[value.name] = tensor_type.elem_type
        if tensor_type.HasField("shape"):
            index.shapes[value.name] = tuple(map(_size_of, tensor_type.shape.dim))
    return index


def _size_of(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    """Return the size; None for an open dimension, which Paddle's exports write as -1."""
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
