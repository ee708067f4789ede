"""A small convolutional network in NumPy that is really trained, and its ONNX model.

Three convolutions, two dense layers, 1.1 million weights, on scikit-learn's digits.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits

Array = npt.NDArray[np.float32]
Weights = dict[str, Array]

CONVOLUTIONS = {"conv1": (1, 32, 1), "conv2": (32, 64, 1), "conv3": (64, 128, 2)}
"""Input channels, output channels, stride."""
DENSE = {"dense": (128 * 4 * 4, 512), "added": (512, 512), "head": (512, 10)}
_BATCH = 32


def digits() -> tuple[Array, npt.NDArray[np.int64]]:
    """Return images, float32 (1797, 1, 8, 8), 0…1, shuffled, and their labels."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = (found.images[order, None] / 16).astype(np.float32)
    return images, found.target[order].astype(np.int64)


def fresh(
    seed: int, layers: Iterable[str] = ("conv1", "conv2", "conv3", "dense", "head")
) -> Weights:
    """Return untrained weights (He's initialization) of these layers."""
    rng = np.random.default_rng(seed)
    weights: Weights = {}
    for name in layers:
        if name in CONVOLUTIONS:
            inputs, outputs, _ = CONVOLUTIONS[name]
            shape: tuple[int, ...] = (outputs, inputs, 3, 3)
            fan_in = inputs * 9
        else:
            shape = DENSE[name]
            fan_in = shape[0]
        values = rng.normal(0, np.sqrt(2 / fan_in), shape)
        weights[f"{name}.w"] = values.astype(np.float32)
        weights[f"{name}.b"] = np.zeros(shape[0] if len(shape) == 4 else shape[1], np.float32)
    return weights


def train(
    weights: Weights,
    images: Array,
    labels: npt.NDArray[np.int64],
    *,
    epochs: int,
    rate: float,
    seed: int,
    only: tuple[str, ...] = (),
) -> Weights:
    """Train by Adam with cross-entropy.

    Args:
        weights: Start weights, unchanged.
        images, labels: Training data.
        epochs: Number of passes over the data.
        rate: Adam's step size.
        seed: Of the order of images.
        only: The layers that change; all when empty.
    """
    weights = {name: value.copy() for name, value in weights.items()}
    trained = [name for name in weights if not only or name.split(".")[0] in only]
    means = {name: np.zeros_like(weights[name]) for name in trained}
    squares = {name: np.zeros_like(weights[name]) for name in trained}
    rng = np.random.default_rng(seed)
    step = 0
    for _ in range(epochs):
        order = rng.permutation(len(images))
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            step += 1
            gradients = _gradients(weights, images[chosen], labels[chosen])
            for name in trained:
                means[name] += 0.1 * (gradients[name] - means[name])
                squares[name] += 0.001 * (gradients[name] ** 2 - squares[name])
                mean = means[name] / (1 - 0.9**step)
                square = squares[name] / (1 - 0.999**step)
                weights[name] -= (rate * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)
    return weights


def right(weights: Weights, images: Array, labels: npt.NDArray[np.int64]) -> float:
    """Return the share of correctly classified images."""
    scores, _ = _forward(weights, images)
    return float(np.mean(scores.argmax(axis=1) == labels))


def as_onnx(weights: Weights) -> onnx.ModelProto:
    """Return the network as ONNX: float32 (1, 1, 8, 8) to 10 scores."""
    nodes, reads = [], "x"
    for name, (_, _, stride) in CONVOLUTIONS.items():
        inputs = [reads, f"{name}.w", f"{name}.b"]
        sizes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [stride, stride]}
        nodes.append(helper.make_node("Conv", inputs, [f"{name}.c"], name=name, **sizes))
        nodes.append(helper.make_node("Relu", [f"{name}.c"], [f"{name}.y"], name=f"{name}.relu"))
        reads = f"{name}.y"
    nodes.append(helper.make_node("Flatten", [reads], ["flat"], name="flatten"))
    reads = "flat"
    for name in (name for name in DENSE if f"{name}.w" in weights):
        writes = "scores" if name == "head" else f"{name}.d"
        inputs = [reads, f"{name}.w", f"{name}.b"]
        nodes.append(helper.make_node("Gemm", inputs, [writes], name=name))
        if name != "head":
            nodes.append(helper.make_node("Relu", [writes], [f"{name}.y"], name=f"{name}.relu"))
        reads = f"{name}.y"
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _forward(weights: Weights, images: Array) -> tuple[Array, dict[str, Array]]:
    """Return scores (n, 10), and inputs and outputs of each layer."""
    seen: dict[str, Array] = {}
    values = images
    for name, (_, _, stride) in CONVOLUTIONS.items():
        columns = _columns(values, stride)
        seen[f"{name}.x"] = columns
        kernel = weights[f"{name}.w"].reshape(len(weights[f"{name}.b"]), -1)
        values = columns @ kernel.T + weights[f"{name}.b"]
        values = np.maximum(values, 0).transpose(0, 3, 1, 2)
        seen[f"{name}.y"] = values
    values = values.reshape(len(values), -1)
    for name in (name for name in DENSE if f"{name}.w" in weights):
        seen[f"{name}.x"] = values
        values = values @ weights[f"{name}.w"] + weights[f"{name}.b"]
        if name != "head":
            values = np.maximum(values, 0)
        seen[f"{name}.y"] = values
    return values, seen


def _gradients(weights: Weights, images: Array, labels: npt.NDArray[np.int64]) -> Weights:
    scores, seen = _forward(weights, images)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    slope = shares / np.float32(len(labels))
    found: Weights = {}
    for name in [name for name in reversed(DENSE) if f"{name}.w" in weights]:
        if name != "head":
            slope = slope * (seen[f"{name}.y"] > 0)
        found[f"{name}.w"] = seen[f"{name}.x"].T @ slope
        found[f"{name}.b"] = slope.sum(axis=0)
        slope = slope @ weights[f"{name}.w"].T
    slope = slope.reshape(seen["conv3.y"].shape)
    for name in reversed(CONVOLUTIONS):
        _, _, stride = CONVOLUTIONS[name]
        flat = (slope * (seen[f"{name}.y"] > 0)).transpose(0, 2, 3, 1)
        kernel = weights[f"{name}.w"]
        columns = seen[f"{name}.x"]
        rows = flat.reshape(-1, flat.shape[-1])
        found[f"{name}.w"] = (rows.T @ columns.reshape(len(rows), -1)).reshape(kernel.shape)
        found[f"{name}.b"] = rows.sum(axis=0)
        if name != "conv1":
            slope = _scatter(flat @ kernel.reshape(len(kernel), -1), kernel.shape[1], stride)
    return found


def _columns(values: Array, stride: int) -> Array:
    """Reorder (n, c, h, w) to (n, h / stride, w / stride, c * 9): the inputs of each place of a 3x3
    kernel.
    """
    padded = np.pad(values, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride].transpose(0, 2, 3, 1, 4, 5)
    return np.ascontiguousarray(windows).reshape(*windows.shape[:3], -1)


def _scatter(columns: Array, channels: int, stride: int) -> Array:
    """Reverse `_columns`, summed: (n, h, w, c * 9) to (n, c, h * stride, w * stride)."""
    count, height, width, _ = columns.shape
    parts = columns.reshape(count, height, width, channels, 3, 3).transpose(0, 3, 1, 2, 4, 5)
    tall, wide = height * stride, width * stride
    padded = np.zeros((count, channels, tall + 2, wide + 2), np.float32)
    for row in range(3):
        for column in range(3):
            rows = slice(row, row + tall, stride)
            padded[:, :, rows, column : column + wide : stride] += parts[..., row, column]
    return padded[:, :, 1:-1, 1:-1]
