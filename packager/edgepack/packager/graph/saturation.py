"""Weights whose products can saturate: known from the weights, not waited for.

x86 CPUs without VNNI multiply unsigned 8-bit activations by signed 8-bit weights and add the
products of two neighbours in 16 bits: more than 32,767 stays 32,767. ONNX Runtime's setting
`session.x64quantprecision` makes it compute otherwise on such CPUs, and does nothing on others.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.operators import facts, is_integer_operator
from edgepack.packager.graph.queries import subgraphs
from edgepack.packager.graph.source_quantization import read_source_quantization

EXACT_SUMS = {"session.x64quantprecision": "1"}
"""Session config entry with which such sums are computed in 32 bits."""

_BYTES = {"int8", "uint8"}
_LARGEST_ACTIVATION = 255
_LARGEST_SUM, _LEAST_SUM = 32_767, -32_768
_FEWEST_AXES = 2
"""Of a product's weight: what has fewer is a bias, or a scale."""


def may_saturate(graph: onnx.GraphProto) -> bool:
    """Whether a sum of two products with any weight of a graph can exceed 16 bits."""
    own = read_source_quantization(graph)
    if own is None or not (own.operators or _BYTES & set(own.activations)):
        return False
    return any(_sum_exceeds(stored_tensors.values(tensor)) for tensor in _integer_weights(graph))


def _integer_weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    read = {
        name
        for node in graph.node
        if facts(node.op_type).is_conversion == "pair" or is_integer_operator(node.op_type)
        for name in node.input
    }
    for tensor in graph.initializer:
        is_weight = tensor.name in read and len(tensor.dims) >= _FEWEST_AXES
        if is_weight and tensor.data_type == onnx.TensorProto.INT8:
            yield tensor
    for node in graph.node:
        for body in subgraphs(node):
            yield from _integer_weights(body)


def _sum_exceeds(values: npt.NDArray[np.generic]) -> bool:
    flat = values.ravel()
    if flat.size < 2:
        return False
    two_largest = int(np.partition(flat, -2)[-2:].astype(np.int64).sum())
    two_least = int(np.partition(flat, 1)[:2].astype(np.int64).sum())
    return (
        two_largest * _LARGEST_ACTIVATION > _LARGEST_SUM
        or two_least * _LARGEST_ACTIVATION < _LEAST_SUM
    )
