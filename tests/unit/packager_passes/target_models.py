"""Small graphs with the patterns that targets are particular about, and samples for them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from edgepack.packager.tensors.sequence import Feeds, Samples
from tests.graphs import graph_model
from tests.unit.packager_passes.models import constant, parsed_model, weight

_TOKENS, _WORDS = 6, 11


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model, and samples of its inputs."""

    model: onnx.ModelProto
    samples: Samples


def residual_cnn() -> Target:
    """Conv, Relu, a residual Add, Sigmoid and Tanh joined by Concat, pooling, Gemm."""
    model = parsed_model(
        "(float[1,3,8,8] x) => (float[1,5] y) { [stem] c1 = Conv<pads=[1,1,1,1]>(x, w1, b1) "
        "[stem_relu] r1 = Relu(c1) [body] c2 = Conv<pads=[1,1,1,1]>(r1, w2, b2) "
        "[residual] sum = Add(c2, r1) [gain_by_constant] scaled = Mul(sum, gain) "
        "[sigmoid] s = Sigmoid(scaled) [tanh] t = Tanh(scaled) [louder] louder = Mul(t, five) "
        "[join] joined = Concat<axis=1>(s, louder) [pool] pooled = GlobalAveragePool(joined) "
        "[flatten] flat = Flatten(pooled) [classify] y = Gemm<transB=1>(flat, w3, b3) }",
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
    model = parsed_model(
        f"(float[1,{_TOKENS},8] x) => (float[1,{_TOKENS},4] y) {{ "
        "[norm] n = LayerNormalization<axis=-1>(x, gamma, beta) [query] q = MatMul(n, wq) "
        "[key] k = MatMul(n, wk) [value] v = MatMul(n, wv) "
        "[turn] kt = Transpose<perm=[0,2,1]>(k) [logits] logits = MatMul(q, kt) "
        "[softmax] attention = Softmax<axis=-1>(logits) [mix] mixed = MatMul(attention, v) "
        "[residual] sum = Add(mixed, x) [gelu_divide] divided = Div(sum, root) "
        "[gelu_erf] erf = Erf(divided) [gelu_add] shifted = Add(erf, one) "
        "[gelu_multiply] product = Mul(sum, shifted) [gelu_halve] gelu = Mul(product, half) "
        "[project] y = MatMul(gelu, wo) }",
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
    model = parsed_model(
        "(float[1,3,8,8] x) => (float[1,2,16,16] y) { "
        "[encode] c1 = Conv<strides=[2,2]>(x, w1, b1) "
        "[grow] c2 = ConvTranspose<strides=[2,2]>(c1, w2, b2) "
        '[resize] y = Resize<mode="nearest">(c2, "", factors) }',
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
    model = graph_model(
        f"(int64[{_TOKENS},1] tokens) => (float[{_TOKENS},1,3] y) {{ "
        "[look_up] looked_up = Gather(table, tokens) "
        "[lstm] steps = LSTM<hidden_size=4>(looked_up, w, r, b) "
        "[squeeze] flat = Squeeze(steps, axis) [project] y = MatMul(flat, out) }",
        [
            weight("table", _WORDS, 4, scale=1.0),
            weight("w", 1, 16, 4),
            weight("r", 1, 16, 4),
            weight("b", 1, 32),
            constant("axis", [1], np.int64),
            weight("out", 4, 3),
        ],
    )

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
