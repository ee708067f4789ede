"""Models of a given duration, installed as an agent does."""

import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.serve.kinds import Subject, open_bare
from benchmarks.swaps.slots import lay_out
from tests.simulators.pointers import write_pointer


def make_model(subject: Subject, layers: int) -> onnx.ModelProto:
    """Return a chain of products with one matrix, or a model that reads four values."""
    values: dict[str, np.ndarray] = {
        "starts": np.zeros(2, np.int64),
        "ends": np.array([1, 4], np.int64),
    }
    if subject.width:
        values["weight"] = np.eye(subject.width, dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["x" if not n else f"x{n}", "weight"], [f"x{n + 1}"])
        for n in range(layers if subject.width else 0)
    ]
    last = nodes[-1].output[0] if nodes else "x"
    nodes.append(helper.make_node("Slice", [last, "starts", "ends"], ["y"]))
    graph = helper.make_graph(
        nodes,
        subject.name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, subject.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def install(subject: Subject, folder: Path, releases: int = 1) -> Path:
    """Install a model in `folder/state`, and switch to its first release.

    Returns:
        The model's file, for bare ONNX Runtime.
    """
    path = folder / f"{subject.name}.onnx"
    layers = 8
    onnx.save(make_model(subject, layers), path)
    if subject.width:
        layers = max(1, round(layers * subject.ms / _duration_ms(subject, path)))
        onnx.save(make_model(subject, layers), path)
    state_dir = folder / "state"
    pointers = lay_out(state_dir, path, subject.shape, releases, subject.name)
    write_pointer(state_dir, pointers[0])
    return path


def _duration_ms(subject: Subject, path: Path) -> float:
    session = open_bare(path)
    x = np.zeros(subject.shape, np.float32)
    taken = []
    for _ in range(300):
        started = time.perf_counter()
        session.run(None, {"x": x})
        taken.append((time.perf_counter() - started) * 1000)
    return float(np.median(taken))
