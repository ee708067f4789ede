"""ONNX Runtime's own messages stay out of a command's lines."""

import subprocess
import sys

_FAILS = """
import numpy as np, onnx, onnxruntime
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node("Gather", ["table", "row"], ["y"])
graph = helper.make_graph(
    [node],
    "fails",
    [helper.make_tensor_value_info("row", TensorProto.INT64, [1])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
    [numpy_helper.from_array(np.ones((3, 2), np.float32), "table")],
)
opsets = [helper.make_opsetid("", 17)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def fail():
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    try:
        session.run(None, {"row": np.array([7])})
    except Exception:
        print("failed")
"""

_QUIET = """
from edgepack.packager.cli.progress_bar import show_progress

with show_progress():
    fail()
"""


def _stderr(script: str) -> str:
    done = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, check=True, timeout=400
    )
    assert done.stdout == "failed\n"
    return done.stderr


def test_a_session_that_is_not_told_to_be_quiet_is_so_in_a_build() -> None:
    assert "[E:onnxruntime:" in _stderr(f"{_FAILS}\nfail()")
    assert _stderr(_FAILS + _QUIET) == ""
