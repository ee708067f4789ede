"""Detection of saturating products from the weights.

x86 CPUs without VNNI multiply unsigned 8-bit activations by signed 8-bit weights and add the
products of two neighbours in 16 bits: more than 32,767 stays 32,767. ONNX Runtime's setting
`session.x64quantprecision` avoids saturation on such CPUs, and has no effect on others.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.operators import facts, is_integer_operator
from edgepack.packager.graph.queries import all_nodes, attribute
from edgepack.packager.graph.source_quantization import (
    constants_of,
    moved_from,
    moves_of,
    read_source_quantization,
)
from edgepack.tasks.arrays import Tensor

EXACT_SUMS = {"session.x64quantprecision": "1"}
"""Session config entry with which such sums are computed in 32 bits."""

_BYTES = {"int8", "uint8"}
_LARGEST_ACTIVATION = 255
_LARGEST_SUM, _LEAST_SUM = 32_767, -32_768
_FEWEST_AXES = 2
"""Of a product's weight: what has fewer is a bias, or a scale."""


def may_saturate(graph: onnx.GraphProto) -> bool:
    """Return True if a sum of two products with any weight of a graph can exceed 16 bits."""
    own = read_source_quantization(graph)
    if own is None or not (own.operators or _BYTES & set(own.activations)):
        return False
    return any(map(_sum_exceeds, _integer_weights(graph)))


def _integer_weights(graph: onnx.GraphProto) -> Iterator[Tensor]:
    """Yield signed weights, also weights that the graph itself quantizes from floats, as training
    leaves them.
    """
    nodes = list(all_nodes(graph))
    constants, moves = dict(constants_of(graph)), moves_of(nodes)
    for node in nodes:
        is_pair = facts(node.op_type).is_conversion == "pair"
        if not (is_pair or is_integer_operator(node.op_type)):
            continue
        for name in node.input:
            stored = constants.get(moved_from(name, moves))
            if stored is None or len(stored.dims) < _FEWEST_AXES:
                continue
            if stored.data_type == onnx.TensorProto.INT8:
                yield stored_tensors.values(stored)
            elif node.op_type == "QuantizeLinear":
                yield from _quantized(node, stored, constants)


def _quantized(
    node: onnx.NodeProto, weight: onnx.TensorProto, constants: Mapping[str, onnx.TensorProto]
) -> Iterator[Tensor]:
    """Yield the quantized form of stored floats, if signed."""
    scale, zero_point = (constants.get(name) for name in (*node.input[1:], "", "")[:2])
    kind = zero_point.data_type if zero_point else attribute(node, "output_dtype", 0)
    if scale is None or kind != onnx.TensorProto.INT8:
        return
    wide, steps = (stored_tensors.values(given).astype(np.float64) for given in (weight, scale))
    if steps.ndim:
        sizes = [1] * wide.ndim
        sizes[attribute(node, "axis", 1)] = steps.size
        steps = steps.reshape(sizes)
    yield np.clip(np.rint(wide / steps), -128, 127)


def _sum_exceeds(values: Tensor) -> bool:
    flat = values.ravel()
    if flat.size < 2:
        return False
    two_largest = int(np.partition(flat, -2)[-2:].astype(np.int64).sum())
    two_least = int(np.partition(flat, 1)[:2].astype(np.int64).sum())
    return (
        two_largest * _LARGEST_ACTIVATION > _LARGEST_SUM
        or two_least * _LARGEST_ACTIVATION < _LEAST_SUM
    )
