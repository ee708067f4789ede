"""Qualcomm's HTP computes floats in 16 bits, for any type in the file: `docs/decisions/0007`."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.agent.runtime.opening import ON_CPU, ProviderSettings, open_model_file

_SIZE = 256
_ON_HTP = ProviderSettings(provider="QNNExecutionProvider", device="npu")


def _weights() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    first, second = (rng.normal(size=(_SIZE, _SIZE)) / 16 for _ in range(2))
    return first, second


def _model(*, halves: bool) -> onnx.ModelProto:
    """Return two products with a Relu between; of 16-bit floats between casts."""
    first, second = _weights()
    kind = np.float16 if halves else np.float32
    ends = ("x16", "y16") if halves else ("x", "y")
    nodes = [
        helper.make_node("MatMul", [ends[0], "first"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "second"], [ends[1]]),
    ]
    if halves:
        nodes.insert(0, helper.make_node("Cast", ["x"], ["x16"], to=TensorProto.FLOAT16))
        nodes.append(helper.make_node("Cast", ["y16"], ["y"], to=TensorProto.FLOAT))
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, _SIZE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, _SIZE])],
        [
            numpy_helper.from_array(first.astype(kind), "first"),
            numpy_helper.from_array(second.astype(kind), "second"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _error(path: Path, settings: ProviderSettings) -> tuple[float, np.ndarray]:
    """Return the error relative to the outputs, and the outputs."""
    rng = np.random.default_rng(1)
    samples = [rng.normal(size=(1, _SIZE)).astype(np.float32) for _ in range(8)]
    session = open_model_file(path, settings)
    assert session.placement.taken == session.placement.total
    got = np.concatenate([session.run({"x": sample})["y"] for sample in samples])
    first, second = _weights()
    exact = np.maximum(np.concatenate(samples).astype(np.float64) @ first, 0) @ second
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact)), got


def test_floats_of_either_type_are_computed_in_16_bits_on_the_htp(tmp_path: Path) -> None:
    full, half = tmp_path / "full.onnx", tmp_path / "half.onnx"
    onnx.save(_model(halves=False), full)
    onnx.save(_model(halves=True), half)
    assert _error(full, ON_CPU)[0] < 1e-5, "32 bits, where a provider computes them"
    (there, got), (as_halves, same) = _error(full, _ON_HTP), _error(half, _ON_HTP)
    assert there > 1e-4
    assert as_halves == pytest.approx(there, rel=0.05)
    assert np.abs(got - same).max() <= 1e-3 * np.abs(got).max()
