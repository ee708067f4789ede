"""The model of a release of the agent: the smallest that proves that a runtime computes."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_WIDTH = 4


def write_proof_model(path: Path) -> Path:
    """Write a model of two operators: input `x` float32 (1, 4), output `y` float32 (1, 4).

    Args:
        path: Is written.

    Returns:
        The same path.
    """
    weight = np.arange(_WIDTH * _WIDTH, dtype=np.float32).reshape(_WIDTH, _WIDTH) / 8 - 1
    shapes = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, _WIDTH]) for name in ("x", "y")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "proof", shapes[:1], shapes[1:], [numpy_helper.from_array(weight, "weight")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path
