"""Error of each tensor of a lowered model against the float model's."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import onnx
from msgspec.structs import asdict

from edgepack.packager.graph.node_precision import node_label, node_precision
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import index_graph
from edgepack.tasks.arrays import Floats

_INSERTED = ("Cast", "Identity")
"""What lowering puts between nodes, beside pairs."""

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
_GREATEST_DB = 100.0
_LEAST_DB = -40.0


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of both models, and the lowered node that computes the tensor.

    Attributes:
        tensor: Its name.
        node, op: The node's name and operator.
        is_lowered: Whether that node computes in fewer bits.
    """

    tensor: str
    node: str
    op: str
    is_lowered: bool


class LayerError(Layer, frozen=True, kw_only=True):
    """The error that has built up until a tensor, on held-out samples.

    Attributes:
        nrmse: Root-mean-square error over the float tensor's root-mean-square, three digits.
        sqnr_db: The same as signal to quantization noise, decibels: -20 log10(nrmse).
    """

    nrmse: float
    sqnr_db: float


def shared_layers(reference: onnx.GraphProto, lowered: onnx.ModelProto) -> tuple[Layer, ...]:
    """Return the tensors to compare, in the float graph's order.

    Operators that only move values repeat the error of their input, and are left out, and so are
    sequences and optional values, which hold no numbers themselves.

    Args:
        reference: The float graph.
        lowered: The lowered model.
    """
    index = index_graph(lowered.graph)
    types = index_graph(reference).types
    no_tensors = {
        value.name for value in reference.value_info if not value.type.HasField("tensor_type")
    }
    precision = node_precision(lowered)
    quantized = precision.quantized if precision else frozenset()
    layers = []
    for node in reference.node:
        known = facts(node.op_type)
        if known.one_scale or not known.has_integer_form:
            continue
        if not node.output or node.output[0] not in index.producers:
            continue
        tensor = node.output[0]
        if tensor in no_tensors or types.get(tensor, onnx.TensorProto.FLOAT) not in _FLOATS:
            continue
        maker = lowered.graph.node[index.producers[tensor]]
        while _is_inserted(maker) and maker.input[0] in index.producers:
            maker = lowered.graph.node[index.producers[maker.input[0]]]
        layers.append(
            Layer(
                tensor=tensor,
                node=maker.name or tensor,
                op=maker.op_type,
                is_lowered=node_label(maker) in quantized,
            )
        )
    return tuple(layers)


def _is_inserted(node: onnx.NodeProto) -> bool:
    return facts(node.op_type).is_conversion == "pair" or node.op_type in _INSERTED


def measure_layer(
    layer: Layer, expected: Sequence[Floats], got: Sequence[Floats]
) -> LayerError | None:
    """Return the error of a tensor over all samples.

    Args:
        layer: The tensor.
        expected, got: float64 (values,), an array per sample: the float model's, the lowered
            model's.

    Returns:
        The error; None where the float model gives nothing but zeros or the shapes differ.
    """
    noise = signal = 0.0
    for before, after in zip(expected, got, strict=True):
        if before.shape != after.shape:
            return None
        finite = np.isfinite(before)
        noise += float(np.sum((after[finite] - before[finite]) ** 2))
        signal += float(np.sum(before[finite] ** 2))
    if signal == 0.0:
        return None
    ratio = math.sqrt(noise / signal) if math.isfinite(noise) else math.inf
    sqnr_db = -20.0 * math.log10(ratio) if 0.0 < ratio < math.inf else math.copysign(1e3, 1 - ratio)
    sqnr_db = min(max(sqnr_db, _LEAST_DB), _GREATEST_DB)
    return LayerError(
        **asdict(layer), nrmse=float(f"{10 ** (-sqnr_db / 20):.3g}"), sqnr_db=round(sqnr_db, 1)
    )
