"""Gemm in the form that every quantizer and provider reads: factors of 1, and a vector as bias.

Gemm takes a bias that broadcasts, and exporters write [1, N]. ONNX Runtime has no integer Gemm for
that: the quantized node restored its weights at every inference and multiplied floats (a file-type
model: 1.37 x the float model's speed instead of 1.6 x). ONNX Runtime has no integer Gemm for
factors either, and QNN leaves such a Gemm to the CPU: the weights absorb the factors.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.queries import is_standard

_WEIGHTS, _BIAS = 1, 2
_FACTORS = (("alpha", _WEIGHTS), ("beta", _BIAS))


def simplify_gemm(graph: onnx.GraphProto) -> None:
    """Compute each Gemm's factors into its constants, and give a bias [1, N] the shape [N]."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Gemm" and is_standard(node):
            _fold_factors(graph, node, constants)
            _flatten_bias(graph, node, constants)


def _fold_factors(
    graph: onnx.GraphProto, node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]
) -> None:
    for attribute in list(node.attribute):
        place = dict(_FACTORS).get(attribute.name)
        if place is None:
            continue
        factor = float(helper.get_attribute_value(attribute))
        name = node.input[place] if place < len(node.input) else ""
        if factor != 1.0 and name:
            if name not in constants or constants[name].data_type != onnx.TensorProto.FLOAT:
                continue
            scaled = f"{name}/times {factor!r}"
            if scaled not in constants:
                values = stored_tensors.values(constants[name])
                product = values.astype(np.float32) * np.float32(factor)
                constants[scaled] = numpy_helper.from_array(product, scaled)
                graph.initializer.append(constants[scaled])
            node.input[place] = scaled
        node.attribute.remove(attribute)


def _flatten_bias(
    graph: onnx.GraphProto, node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]
) -> None:
    bias = constants.get(node.input[_BIAS]) if len(node.input) > _BIAS else None
    if bias is None or len(bias.dims) != 2 or bias.dims[0] != 1:
        return
    name = f"{bias.name}/vector"
    if name not in constants:
        vector = numpy_helper.from_array(stored_tensors.values(bias).reshape(-1), name)
        constants[name] = vector
        graph.initializer.append(vector)
    node.input[_BIAS] = name
