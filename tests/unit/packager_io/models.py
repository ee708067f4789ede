"""Small real models and samples for the packager's tests."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from edgepack.packager.tensors.spec import TensorSpec
from tests.graphs import graph_model

IMAGE = TensorSpec(name="images", dtype="float32", shape=("batch", 3, 8, 8))
TOKENS = TensorSpec(name="ids", dtype="int64", shape=(1, 4))


def small_cnn(
    *, opset: int = 17, batch: str | int = "batch", ir_version: int = 8
) -> onnx.ModelProto:
    """Return two convolutions and a classifier: images float32 (batch, 3, 8, 8) to scores (batch,
    10).
    """
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name)

    return graph_model(
        f"(float[{batch},3,8,8] images) => (float[{batch},10] scores) {{ "
        "[first] c1 = Conv<pads=[1,1,1,1]>(images, w1, b1) [relu1] r1 = Relu(c1) "
        "[second] c2 = Conv<pads=[1,1,1,1]>(r1, w2) [relu2] r2 = Relu(c2) "
        "[pool] pooled = GlobalAveragePool(r2) [flatten] flat = Flatten(pooled) "
        "[classify] scores = Gemm(flat, w3, b3) }",
        [
            weight("w1", 16, 3, 3, 3),
            weight("b1", 16),
            weight("w2", 24, 16, 3, 3),
            weight("w3", 24, 10),
            weight("b3", 10),
        ],
        opset=opset,
        ir_version=ir_version,
    )


LAYER_WIDTH = 160
"""A weight of 160 x 160 floats takes 102,400 bytes, enough to go into a file or to stay in one."""


def two_layers(*, opset: int = 17, nan: bool = False) -> onnx.ModelProto:
    """Return products with `w0` and `w1`, 102,400 bytes each, and a small bias `w2` in between."""
    rng = np.random.default_rng(0)
    weights = [
        rng.normal(0, 0.1, (LAYER_WIDTH, LAYER_WIDTH)).astype(np.float32),
        rng.normal(0, 0.1, (LAYER_WIDTH, LAYER_WIDTH)).astype(np.float32),
        np.ones(LAYER_WIDTH, np.float32),
    ]
    if nan:
        weights[1][3, 4] = np.nan
    return graph_model(
        f"(float[1,{LAYER_WIDTH}] x) => (float[1,{LAYER_WIDTH}] y) {{ h = MatMul(x, w0) "
        "b = Add(h, w2) r = Relu(b) y = MatMul(r, w1) }",
        [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(weights)],
        opset=opset,
    )


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write the model as a single file."""
    path.write_bytes(model.SerializeToString())
    return path


def save_with_external_data(model: onnx.ModelProto, path: Path) -> Path:
    """Write the model with all its weights in `weights.bin` next to the model."""
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location="weights.bin",
        size_threshold=0,
    )
    return path


def write_stack(path: Path, count: int, *, seed: int = 1) -> Path:
    """Write a .npz with `count` samples for `small_cnn`."""
    rng = np.random.default_rng(seed)
    np.savez(path, images=rng.normal(0, 1, (count, 3, 8, 8)).astype(np.float32))
    return path
