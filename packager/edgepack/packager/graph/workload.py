"""Workload of a graph's nodes: bytes of weights, multiply-accumulates."""

import math
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
import onnx

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.queries import GraphIndex

_FEWEST_AXES = 2
"""Axes of a weight; what has fewer is a bias or a factor, whose bytes do not count."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Workload of a node.

    Attributes:
        weight_bytes: Bytes of its stored weights; each of several readers of the same weights has
            all bytes.
        macs: Multiply-accumulates of an inference; 0 for a node without any, or with unknown
            shapes.
    """

    weight_bytes: int = 0
    macs: int = 0


def workloads(index: GraphIndex) -> dict[str, Workload]:
    """Return the workload of each node of a graph, by name.

    Open axes count as 1.

    Args:
        index: The graph; nodes in the bodies of control flow are not among the results.
    """
    return {
        node.name: Workload(
            weight_bytes=weight_bytes(node, index.initializers), macs=_macs(index, node)
        )
        for node in index.graph.node
    }


def weight_bytes(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> int:
    """Return bytes of a node's weights.

    Args:
        node: The node, of a graph or of a body.
        constants: Constants visible to the node.
    """
    return sum(
        stored_tensors.size_bytes(constants[name])
        for name in dict.fromkeys(node.input)
        if name in constants and len(constants[name].dims) >= _FEWEST_AXES
    )


def float_weights(graph: onnx.GraphProto) -> dict[str, float]:
    """Return the operators with 32-bit weights, and their share of all bytes of weights.

    Args:
        graph: A lowered graph with quantized weights read by DequantizeLinear.

    Returns:
        Shares by operator type, the largest first.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    whole = sum(map(stored_tensors.size_bytes, graph.initializer))
    floats = {
        name: tensor
        for name, tensor in constants.items()
        if tensor.data_type == onnx.TensorProto.FLOAT
    }
    kept: Counter[str] = Counter()
    for node in graph.node:
        kept[node.op_type] += weight_bytes(node, floats)
    return {kind: size / whole for kind, size in kept.most_common() if size}


def _macs(index: GraphIndex, node: onnx.NodeProto) -> int:
    count = _MACS.get(node.op_type)
    return 0 if count is None else count(index, node)


def _convolution(index: GraphIndex, node: onnx.NodeProto) -> int:
    """Return each output element takes a kernel of each input channel of its group."""
    return _size(index, node.output[0]) * math.prod(_shape(index, node.input[1])[1:])


def _transposed_convolution(index: GraphIndex, node: onnx.NodeProto) -> int:
    """Return each input element goes into a kernel of each output channel of its group."""
    return _size(index, node.input[0]) * math.prod(_shape(index, node.input[1])[1:])


def _product(index: GraphIndex, node: onnx.NodeProto) -> int:
    return _size(index, node.output[0]) * (_shape(index, node.input[0]) or (0,))[-1]


def _gemm(index: GraphIndex, node: onnx.NodeProto) -> int:
    """Return rows times columns times the inner size, with either matrix transposed."""
    left, output = _size(index, node.input[0]), _shape(index, node.output[0])
    return left * output[-1] if output else 0


def _recurrent(index: GraphIndex, node: onnx.NodeProto) -> int:
    """Return the multiply-accumulates of a recurrent node: each step uses both weights
    completely.
    """
    steps = math.prod(_shape(index, node.input[0])[:2])
    return steps * sum(_size(index, name) for name in node.input[1:3])


_MACS: Mapping[str, Callable[[GraphIndex, onnx.NodeProto], int]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "MatMul": _product,
    "Gemm": _gemm,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}


def _shape(index: GraphIndex, name: str) -> tuple[int, ...]:
    """Return the sizes of a tensor, open sizes as 1; () if unknown."""
    return tuple(size or 1 for size in index.shapes.get(name, ()))


def _size(index: GraphIndex, name: str) -> int:
    """Return elements of a tensor; 0 where its shape is not known."""
    return math.prod(_shape(index, name)) if name in index.shapes else 0
