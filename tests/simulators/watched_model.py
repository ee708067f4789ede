"""A classifier that goes wrong after the commit: an input lets it fail, give NaN or be slow,
as a device's own inputs may do. The model is right on its golden samples.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.simulators.building import build_archive

WIDTH = 64
CLASSES = 5
FAULTS = {"failed": 1, "not_finite": 2, "slow": 3}
SLOW_LAYERS = 3000


def weights() -> np.ndarray:
    """Return the matrix of the classifier, float32 (WIDTH, CLASSES)."""
    return np.random.default_rng(1).standard_normal((WIDTH, CLASSES)).astype(np.float32)


def classifier(slow_layers: int) -> onnx.ModelProto:
    """Return a classifier by a matrix; the input `fault` matters only with slow layers."""
    values: dict[str, np.ndarray] = {
        "weights": weights(),
        "same": np.eye(WIDTH, dtype=np.float32),
        "row": np.zeros((1, CLASSES), np.float32),
        "zero": np.zeros(1, np.float32),
        "one": np.ones(1, np.float32),
        **{name: np.array([n if slow_layers else -n]) for name, n in FAULTS.items()},
    }
    slow = [helper.make_node("Identity", ["x"], ["slow0"])]
    layers = max(slow_layers, 1)
    for number in range(layers):
        slow.append(helper.make_node("MatMul", [f"slow{number}", "same"], [f"slow{number + 1}"]))
    nodes = [
        helper.make_node("Equal", ["fault", "slow"], ["is_slow_row"]),
        helper.make_node("Squeeze", ["is_slow_row"], ["is_slow"]),
        helper.make_node(
            "If",
            ["is_slow"],
            ["passed"],
            then_branch=branch("slow", slow, f"slow{layers}"),
            else_branch=branch("fast", [helper.make_node("Identity", ["x"], ["as"])], "as"),
        ),
        helper.make_node("MatMul", ["passed", "weights"], ["scores"], "classify"),
        helper.make_node("Equal", ["fault", "failed"], ["fails"]),
        helper.make_node("Cast", ["fails"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["row", "index"], ["nothing"], axis=0),
        helper.make_node("Add", ["scores", "nothing"], ["added"]),
        helper.make_node("Equal", ["fault", "not_finite"], ["is_nan"]),
        helper.make_node("Where", ["is_nan", "zero", "one"], ["factor"]),
        helper.make_node("Div", ["factor", "factor"], ["quotient"]),
        helper.make_node("Mul", ["added", "quotient"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"], "decide", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "shapes",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH]),
            helper.make_tensor_value_info("fault", TensorProto.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CLASSES])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branch(name: str, nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    value = helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, WIDTH])
    return helper.make_graph(nodes, name, [], [value])


def build(folder: Path, key: Path, number: int, slow_layers: int = SLOW_LAYERS) -> Path:
    folder.mkdir(exist_ok=True)
    model, samples = folder / f"model-{number}.onnx", folder / "samples.npz"
    onnx.save(classifier(slow_layers if number else 0), model)
    x = np.random.default_rng(0).standard_normal((100, WIDTH)).astype(np.float32)
    np.savez(samples, x=x, fault=np.zeros(100, np.int64))
    return build_archive(model, samples, key, folder / f"shapes-1.{number}.0.edgepack")
