"""Small models with the operators that exports of well-known architectures have."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class _Graph:
    """Collects nodes and constants; names are generated, like exporters' names."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def weight(self, *shape: int, scale: float) -> str:
        return self.constant(self._rng.normal(0, scale, shape).astype(np.float32))

    def constant(self, values: object, dtype: type | None = None) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def add(
        self, kind: str, *inputs: str, output: str = "", count: int = 1, **attributes: object
    ) -> str:
        name = f"/{kind}_{len(self.nodes)}"
        outputs = [output or f"{name}_output_{i}" for i in range(count)]
        self.nodes.append(
            helper.make_node(kind, list(inputs), outputs, name=name, **attributes)  # type: ignore[arg-type]
        )
        return outputs[0]

    def last_outputs(self) -> Sequence[str]:
        return list(self.nodes[-1].output)

    def model(
        self, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "export", inputs, outputs, self.constants)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7, producer_name="made"
        )


def tiny_bert() -> onnx.ModelProto:
    """Return a layer of a BERT, opset 13, open axes, LayerNormalization decomposed.

    input_ids, attention_mask int64 (batch, length) to last_hidden_state float32 (…, 16). The mask
    adds -3.4e38 as exports do.
    """
    g = _Graph(1)
    width, heads = 16, 2
    hidden = g.add("Gather", g.weight(64, width, scale=1.0), "input_ids")
    hidden = _normalize(g, hidden, width)
    mask = g.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    mask = g.add("Unsqueeze", mask, g.constant([1, 2], np.int64))
    mask = g.add("Sub", g.constant(1.0, np.float32), mask)
    mask = g.add("Mul", mask, g.constant(-3.4028234663852886e38, np.float32))
    parts = []
    for _ in range(3):
        part = g.add("MatMul", hidden, g.weight(width, width, scale=0.3))
        part = g.add("Add", part, g.weight(width, scale=0.1))
        part = g.add("Reshape", part, g.constant([0, 0, heads, width // heads], np.int64))
        parts.append(g.add("Transpose", part, perm=[0, 2, 1, 3]))
    key = g.add("Transpose", parts[1], perm=[0, 1, 3, 2])
    scores = g.add("Div", g.add("MatMul", parts[0], key), g.constant(2.83, np.float32))
    weights = g.add("Softmax", g.add("Add", scores, mask), axis=-1)
    mixed = g.add("Transpose", g.add("MatMul", weights, parts[2]), perm=[0, 2, 1, 3])
    mixed = g.add("Reshape", mixed, g.constant([0, 0, width], np.int64))
    mixed = g.add("MatMul", mixed, g.weight(width, width, scale=0.3))
    hidden = _normalize(g, g.add("Add", mixed, hidden), width)
    wide = g.add("MatMul", hidden, g.weight(width, 32, scale=0.3))
    half = g.add("Div", wide, g.constant(1.4142135, np.float32))
    gate = g.add("Add", g.add("Erf", half), g.constant(1.0, np.float32))
    wide = g.add("Mul", g.add("Mul", wide, gate), g.constant(0.5, np.float32))
    narrow = g.add("MatMul", wide, g.weight(32, width, scale=0.3))
    _normalize(g, g.add("Add", narrow, hidden), width, output="last_hidden_state")
    value = helper.make_tensor_value_info
    axes = ["batch", "length"]
    return g.model(
        [value(name, TensorProto.INT64, axes) for name in ("input_ids", "attention_mask")],
        [value("last_hidden_state", TensorProto.FLOAT, [*axes, width])],
    )


def _normalize(g: _Graph, x: str, width: int, output: str = "") -> str:
    centred = g.add("Sub", x, g.add("ReduceMean", x, axes=[-1]))
    square = g.add("Pow", centred, g.constant(2.0, np.float32))
    variance = g.add("ReduceMean", square, axes=[-1])
    deviation = g.add("Sqrt", g.add("Add", variance, g.constant(1e-12, np.float32)))
    scaled = g.add("Mul", g.add("Div", centred, deviation), g.weight(width, scale=1.0))
    return g.add("Add", scaled, g.weight(width, scale=0.1), output=output)


def tiny_detector() -> onnx.ModelProto:
    """Return the blocks of a YOLOv8, opset 13, open axes: boxes and scores in a single output.

    images float32 (batch, 3, height, width) to output0 float32 (batch, 4 + 3, cells): SiLU
    convolutions, a split block, pooling at three sizes, an upsampled branch, and a head that
    takes expectations over bins.
    """
    g = _Graph(2)
    x = _silu(g, "images", 3, 8, stride=2)
    x = _silu(g, x, 8, 16, stride=2)
    g.add("Split", x, g.constant([8, 8], np.int64), count=2, axis=1)
    left, right = g.last_outputs()
    inner = g.add("Add", _silu(g, right, 8, 8), right)
    x = _silu(g, g.add("Concat", left, right, inner, axis=1), 24, 16, size=1)
    pooled = [_silu(g, x, 16, 8, size=1)]
    for _ in range(3):
        pooled.append(g.add("MaxPool", pooled[-1], kernel_shape=[5, 5], pads=[2, 2, 2, 2]))
    deep = _silu(g, g.add("Concat", *pooled, axis=1), 32, 16, stride=2)
    scales = g.constant([1.0, 1.0, 2.0, 2.0], np.float32)
    up = g.add(
        "Resize",
        *(deep, "", scales),
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )
    x = _silu(g, g.add("Concat", up, x, axis=1), 32, 16)
    bins = g.add("Conv", x, g.weight(32, 16, 1, 1, scale=0.5), g.weight(32, scale=0.1))
    classes = g.add("Conv", x, g.weight(3, 16, 1, 1, scale=0.9), g.weight(3, scale=0.1))
    flat = g.constant([0, 4, 8, -1], np.int64)
    chances = g.add("Transpose", g.add("Reshape", bins, flat), perm=[0, 2, 1, 3])
    chances = g.add("Softmax", chances, axis=1)
    expectation = g.constant(np.arange(8).reshape(1, 8, 1, 1), np.float32)
    boxes = g.add("Conv", chances, expectation)
    boxes = g.add("Reshape", boxes, g.constant([0, 4, -1], np.int64))
    boxes = g.add("Mul", boxes, g.constant(64.0, np.float32))
    scores = g.add("Sigmoid", g.add("Reshape", classes, g.constant([0, 3, -1], np.int64)))
    g.add("Concat", boxes, scores, axis=1, output="output0")
    value = helper.make_tensor_value_info
    return g.model(
        [value("images", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [value("output0", TensorProto.FLOAT, ["batch", 7, "cells"])],
    )


def _silu(g: _Graph, x: str, inputs: int, outputs: int, *, size: int = 3, stride: int = 1) -> str:
    weight = g.weight(outputs, inputs, size, size, scale=float(np.sqrt(2 / (inputs * size * size))))
    pads = [size // 2] * 4
    x = g.add("Conv", x, weight, g.weight(outputs, scale=0.1), pads=pads, strides=[stride, stride])
    return g.add("Mul", x, g.add("Sigmoid", x))
