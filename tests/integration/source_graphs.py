"""Small graphs in the form of exporters."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def random_weight(name: str, *shape: int, dtype: type = np.float32) -> onnx.TensorProto:
    rng = np.random.default_rng([len(name), *shape])
    return numpy_helper.from_array((rng.normal(0, 0.5, shape)).astype(dtype), name)


def value_info(
    name: str, shape: Sequence[int | str] | None, kind: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def operators_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


node = helper.make_node


def two_products(dtype: type = np.float32, opset: int = 17) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model_of(
        [
            node("MatMul", ["x", "w1"], ["h"], name="first"),
            node("Relu", ["h"], ["r"], name="relu"),
            node("MatMul", ["r", "w2"], ["y"], name="second"),
        ],
        [value_info("x", [1, 8], kind)],
        [value_info("y", [1, 4], kind)],
        [random_weight("w1", 8, 16, dtype=dtype), random_weight("w2", 16, 4, dtype=dtype)],
        opset=opset,
    )
