"""The memory of an application does not grow with each swap of an equal model."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.swaps.__main__ import Subject, measure
from edgepack.agent.runtime import heap
from edgepack.fleet.documents.gates import BY_NAME

WIDTH, LAYERS, SWAPS = 512, 24, 6


def write_model(path: Path) -> None:
    """Write a stack of matrices, 24 MB."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for layer in range(LAYERS):
        weight = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"x{layer + 1}"]))
    graph = helper.make_graph(
        nodes,
        "stack",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [16, WIDTH])],
        [helper.make_tensor_value_info(f"x{LAYERS}", TensorProto.FLOAT, [16, WIDTH])],
        weights,
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.mark.skipif(not heap.gives_memory_back(), reason="the C library is not glibc")
def test_memory_after_many_swaps_of_an_equal_model_stays_below_the_gate(tmp_path: Path) -> None:
    write_model(tmp_path / "stack.onnx")
    subject = Subject("stack", tmp_path / "stack.onnx", (16, WIDTH))
    measured = measure(subject, SWAPS + 1, threads=1)
    assert len(measured.bytes_after) == SWAPS + 1
    assert measured.growth < BY_NAME["memory"].threshold, measured.bytes_after
