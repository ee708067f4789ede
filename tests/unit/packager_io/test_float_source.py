"""Inputs that the float model cannot run are an error with the inputs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.source.model import load_source
from edgepack.packager.source.reference import FloatSource
from tests.unit.packager_io.models import save


def _fixed_reshape() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], name="fold")],
        "fixed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])],
        [numpy_helper.from_array(np.array([3, 4], np.int64), "shape")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_sample_that_does_not_run_is_told_with_its_values_and_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = load_source(save(_fixed_reshape(), tmp_path / "m.onnx"))
    run = FloatSource(source, tmp_path / "float.onnx")
    with pytest.raises(BuildError) as caught:
        run({"x": np.arange(8, dtype=np.float32).reshape(2, 4)})
    assert caught.value.problem.startswith(
        "the float model does not run on a sample: Non-zero status code returned while running "
        "Reshape node. Name:'fold'"
    )
    assert caught.value.found_in == f"{tmp_path / 'm.onnx'}, fed with x: float32[2,4], 0 … 7"
    assert capfd.readouterr().err == "", "ONNX Runtime says nothing of its own"
