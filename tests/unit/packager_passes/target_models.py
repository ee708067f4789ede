"""Small graphs with the patterns that targets are particular about, and samples for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepack.packager.tensors.sequence import Feeds, Samples
from tests.unit.packager_passes.models import constant, make_model, weight

_TOKENS, _WORDS = 6, 11


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model, and samples of its inputs."""

    model: onnx.ModelProto
    samples: Samples


def residual_cnn() -> Target:
    """Conv, Relu, a residual Add, Sigmoid and Tanh joined by Concat, pooling, Gemm."""
    node = helper.make_node
    model = make_model(
        [
            node("Conv", ["x", "w1", "b1"], ["c1"], name="stem", pads=[1, 1, 1, 1]),
            node("Relu", ["c1"], ["r1"], name="stem_relu"),
            node("Conv", ["r1", "w2", "b2"], ["c2"], name="body", pads=[1, 1, 1, 1]),
            node("Add", ["c2", "r1"], ["sum"], name="residual"),
            node("Mul", ["sum", "gain"], ["scaled"], name="gain_by_constant"),
            node("Sigmoid", ["scaled"], ["s"], name="sigmoid"),
            node("Tanh", ["scaled"], ["t"], name="tanh"),
            node("Mul", ["t", "five"], ["louder"], name="louder"),
            node("Concat", ["s", "louder"], ["joined"], name="join", axis=1),
            node("GlobalAveragePool", ["joined"], ["pooled"], name="pool"),
            node("Flatten", ["pooled"], ["flat"], name="flatten"),
            node("Gemm", ["flat", "w3", "b3"], ["y"], name="classify", transB=1),
        ],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 5]},
        [
            weight("w1", 4, 3, 3, 3),
            weight("b1", 4),
            weight("w2", 4, 4, 3, 3),
            weight("b2", 4),
            weight("w3", 5, 8, scale=2.0),
            weight("b3", 5),
            constant("gain", 0.7),
            constant("five", 5.0),
        ],
    )
    return Target(model=model, samples=_floats({"x": (1, 3, 8, 8)}))


def transformer() -> Target:
    """LayerNormalization, attention with Softmax, a residual, and Gelu written with Erf."""
    node = helper.make_node
    model = make_model(
        [
            node("LayerNormalization", ["x", "gamma", "beta"], ["n"], name="norm", axis=-1),
            node("MatMul", ["n", "wq"], ["q"], name="query"),
            node("MatMul", ["n", "wk"], ["k"], name="key"),
            node("MatMul", ["n", "wv"], ["v"], name="value"),
            node("Transpose", ["k"], ["kt"], name="turn", perm=[0, 2, 1]),
            node("MatMul", ["q", "kt"], ["logits"], name="logits"),
            node("Softmax", ["logits"], ["attention"], name="softmax", axis=-1),
            node("MatMul", ["attention", "v"], ["mixed"], name="mix"),
            node("Add", ["mixed", "x"], ["sum"], name="residual"),
            node("Div", ["sum", "root"], ["divided"], name="gelu_divide"),
            node("Erf", ["divided"], ["erf"], name="gelu_erf"),
            node("Add", ["erf", "one"], ["shifted"], name="gelu_add"),
            node("Mul", ["sum", "shifted"], ["product"], name="gelu_multiply"),
            node("Mul", ["product", "half"], ["gelu"], name="gelu_halve"),
            node("MatMul", ["gelu", "wo"], ["y"], name="project"),
        ],
        {"x": [1, _TOKENS, 8]},
        {"y": [1, _TOKENS, 4]},
        [
            weight("gamma", 8, scale=1.0),
            weight("beta", 8),
            weight("wq", 8, 8),
            weight("wk", 8, 8, seed=1),
            weight("wv", 8, 8, seed=2),
            weight("wo", 8, 4),
            constant("root", 2**0.5),
            constant("one", 1.0),
            constant("half", 0.5),
        ],
    )
    return Target(model=model, samples=_floats({"x": (1, _TOKENS, 8)}))


def decoder() -> Target:
    """ConvTranspose and Resize, as segmentation heads have them."""
    node = helper.make_node
    model = make_model(
        [
            node("Conv", ["x", "w1", "b1"], ["c1"], name="encode", strides=[2, 2]),
            node("ConvTranspose", ["c1", "w2", "b2"], ["c2"], name="grow", strides=[2, 2]),
            node("Resize", ["c2", "", "factors"], ["y"], name="resize", mode="nearest"),
        ],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 2, 16, 16]},
        [
            weight("w1", 4, 3, 2, 2),
            weight("b1", 4),
            weight("w2", 4, 2, 2, 2),
            weight("b2", 2),
            constant("factors", [1, 1, 2, 2]),
        ],
    )
    return Target(model=model, samples=_floats({"x": (1, 3, 8, 8)}))


def recurrent() -> Target:
    """Tokens looked up in a table, an LSTM, a product: int64 in, float out."""
    node = helper.make_node
    graph = helper.make_graph(
        [
            node("Gather", ["table", "tokens"], ["looked_up"], name="look_up"),
            node("LSTM", ["looked_up", "w", "r", "b"], ["steps"], name="lstm", hidden_size=4),
            node("Squeeze", ["steps", "axis"], ["flat"], name="squeeze"),
            node("MatMul", ["flat", "out"], ["y"], name="project"),
        ],
        "graph",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, [_TOKENS, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [_TOKENS, 1, 3])],
        [
            weight("table", _WORDS, 4, scale=1.0),
            weight("w", 1, 16, 4),
            weight("r", 1, 16, 4),
            weight("b", 1, 32),
            constant("axis", [1], np.int64),
            weight("out", 4, 3),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def read(index: int) -> Feeds:
        rng = np.random.default_rng(index)
        return {"tokens": rng.integers(0, _WORDS, (_TOKENS, 1), dtype=np.int64)}

    return Target(model=model, samples=Samples(count=8, read=read, source="made by the test"))


def _floats(shapes: dict[str, Sequence[int]]) -> Samples:
    def read(index: int) -> Feeds:
        rng = np.random.default_rng(index)
        return {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}

    return Samples(count=8, read=read, source="made by the test")


TARGETS = {
    "residual_cnn": residual_cnn,
    "transformer": transformer,
    "decoder": decoder,
    "recurrent": recurrent,
}
