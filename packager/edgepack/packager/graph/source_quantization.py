"""Quantization of the source model (in training, or by another tool), with its types.

Such a model is passed on with its own scales: another quantization would round twice, and lose the
trained scales.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import numpy as np
import onnx
from onnx import helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.operators import facts, is_integer_operator
from edgepack.packager.graph.queries import all_nodes, attribute, subgraphs

PACKED_PRODUCT = frozenset({"MatMulNBits"})
"""A product of floats with weights that are stored as packed integers."""


class SourceQuantization(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a quantized model about its integers.

    Attributes:
        activations, weights: Integer types by NumPy's names, sorted; of pairs, and of products with
            packed weights.
        is_per_channel: Whether any weight has a scale for each channel.
        other_scales: Names of the scales that are not constant powers of two, sorted; of pairs and
            of integer operators.
        operators: Integer operators (`QLinearConv` …) that stand in place of pairs, sorted.
    """

    activations: tuple[str, ...]
    weights: tuple[str, ...]
    is_per_channel: bool
    other_scales: tuple[str, ...]
    operators: tuple[str, ...]

    @property
    def is_of_weights(self) -> bool:
        """True if activations stay floats: the model computes in floats."""
        return not self.activations and PACKED_PRODUCT.issuperset(self.operators)

    @property
    def weight_bits(self) -> int:
        """Of the narrowest weight; 8 where no type is known."""
        return min(map(_bits, self.weights), default=8)

    @property
    def precision(self) -> str:
        """For people: `a8w8`, `a16w8`, `w8` where only weights are integers, or `int8`."""
        if self.operators and not self.is_of_weights:
            return "int8"
        bits = [
            f"{letter}{_bits(types[0])}"
            for letter, types in (("a", self.activations), ("w", self.weights))
            if types
        ]
        return "".join(bits) or "int8"


def read_source_quantization(graph: onnx.GraphProto) -> SourceQuantization | None:
    """Read the quantization of a graph and its bodies; return None for a float model."""
    nodes = list(all_nodes(graph))
    pairs = [node for node in nodes if facts(node.op_type).is_conversion == "pair"]
    operators = {node.op_type for node in nodes if is_integer_operator(node.op_type)}
    if not pairs and not operators:
        return None
    constants = dict(constants_of(graph))
    moves = moves_of(nodes)
    activations, weights = set(), set()
    for node in pairs:
        zero_point = constants.get(node.input[2]) if len(node.input) > 2 else None
        stored = constants.get(moved_from(node.input[0], moves))
        if node.op_type == "QuantizeLinear":
            kind = zero_point.data_type if zero_point else onnx.TensorProto.UINT8
            activations.add(_name(kind))
        elif stored is not None and stored.data_type != onnx.TensorProto.INT32:
            weights.add(_name(stored.data_type))
    weights |= {
        f"uint{attribute(node, 'bits', 4)}" for node in nodes if node.op_type in PACKED_PRODUCT
    }
    return SourceQuantization(
        activations=tuple(sorted(activations)),
        weights=tuple(sorted(weights)),
        is_per_channel=any(
            len(scale.dims) and scale.dims[0] > 1
            for scale in (constants.get(node.input[1]) for node in pairs)
            if scale is not None
        ),
        other_scales=tuple(
            sorted(
                {
                    name
                    for node in nodes
                    for name in _scales_of(node, constants)
                    if name not in constants or not _is_power_of_two(constants[name])
                }
            )
        ),
        operators=tuple(sorted(operators)),
    )


def moves_of(nodes: Iterable[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    """Return nodes that only move values, by output."""
    return {node.output[0]: node for node in nodes if facts(node.op_type).moves_integers}


def moved_from(name: str, moves: Mapping[str, onnx.NodeProto]) -> str:
    """Return the tensor behind moving nodes, for example the table of some rows."""
    while name in moves:
        name = moves[name].input[0]
    return name


def constants_of(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield stored values by name, of a graph and its bodies."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        if node.op_type == "Constant" and (value := attribute(node, "value")) is not None:
            yield node.output[0], value
        for body in subgraphs(node):
            yield from constants_of(body)


def _scales_of(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> Iterator[str]:
    """Yield the names of the scales that a pair or an integer operator reads or computes."""
    if facts(node.op_type).is_conversion == "pair":
        yield node.input[1]
    elif node.op_type.startswith("Dynamic"):
        yield node.output[min(1, len(node.output) - 1)]
    elif is_integer_operator(node.op_type):
        floats = onnx.TensorProto.FLOAT
        yield from (i for i in node.input if i in constants and constants[i].data_type == floats)


def _bits(name: str) -> int:
    """Return the bits of a type by NumPy's name; `int4` takes a byte in NumPy, and half a byte in a
    model.
    """
    integer = re.fullmatch(r"u?int(\d+)", name)
    return int(integer[1]) if integer else np.dtype(name).itemsize * 8


def _name(kind: int) -> str:
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind)).name


def _is_power_of_two(scale: onnx.TensorProto) -> bool:
    mantissas = np.frexp(stored_tensors.values(scale).astype(np.float64))[0]
    return bool((mantissas == 0.5).all())
