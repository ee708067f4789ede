"""Convolutions as a sum of two, whose 8-bit weights together have 16 bits."""

import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec.structs import replace
from onnx import numpy_helper

from edgepack.packager.passes.split_weights import split_weights
from edgepack.packager.profiles.reading import load_profile
from tests.graphs import graph_model

_GRAPHS = {
    "Conv": "y = Conv <group = 2, pads = [1, 1, 1, 1]> (x, w, b)",
    "ConvTranspose": "y = ConvTranspose <strides = [2, 2]> (x, w, b)",
}
_SHAPES = {"Conv": (6, 2, 3, 3), "ConvTranspose": (4, 6, 2, 2)}


def _as_8_bits(weights: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    scales = np.abs(weights).max(axis=axes, keepdims=True) / 127
    return np.asarray(np.rint(weights / scales) * scales, np.float32)


@pytest.mark.parametrize("kind", list(_GRAPHS))
def test_two_parts_of_8_bits_keep_16_bits_of_the_weights(kind: str) -> None:
    rng = np.random.default_rng(2)
    weights = rng.normal(0, 1, _SHAPES[kind]).astype(np.float32)
    bias = rng.normal(0, 1, 6).astype(np.float32)
    model = graph_model(
        f"(float[1,4,8,8] x) => (float[a,b,c,d] y) {{ {_GRAPHS[kind]} }}",
        {"w": weights, "b": bias},
    )
    feeds = {"x": rng.normal(0, 1, (1, 4, 8, 8)).astype(np.float32)}

    def run(one: onnx.ModelProto) -> np.ndarray:
        session = onnxruntime.InferenceSession(one.SerializeToString())
        return np.asarray(session.run(None, feeds)[0])

    axes = (1, 2, 3) if kind == "Conv" else (0, 2, 3)
    exact = run(model)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(_as_8_bits(weights, axes), "w"))
    lost = np.abs(run(model) - exact).max()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "w"))
    quantize = load_profile("qnn-htp").quantize
    assert quantize is not None
    note = split_weights(model, replace(quantize, weight_parts=2))
    assert note.startswith("1 convolution became a sum of two")
    assert [node.op_type for node in model.graph.node] == [kind, kind, "Add"]
    for tensor in model.graph.initializer:
        if tensor.name.endswith("weights"):
            rounded = _as_8_bits(numpy_helper.to_array(tensor), axes)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    assert np.abs(run(model) - exact).max() < lost / 60
