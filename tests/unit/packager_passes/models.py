"""Small models with what quantizers stumble over, and samples for them."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.tensors.sequence import Feeds, Samples
from tests.graphs import graph_model

_RNG_SEED = 7


def weight(name: str, *shape: int, scale: float = 0.3, seed: int = 0) -> onnx.TensorProto:
    """A normally distributed weight; the same for the same arguments."""
    rng = np.random.default_rng([_RNG_SEED, seed, *shape])
    return numpy_helper.from_array(rng.normal(0, scale, shape).astype(np.float32), name)


def constant(name: str, value: object, dtype: type[np.generic] = np.float32) -> onnx.TensorProto:
    """An initializer from a value."""
    return numpy_helper.from_array(np.array(value, dtype=dtype), name)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str]],
    outputs: dict[str, Sequence[int | str]],
    initializers: Sequence[onnx.TensorProto],
    *,
    opset: int = 17,
) -> onnx.ModelProto:
    """A checked float model with shapes."""

    def infos(shapes: dict[str, Sequence[int | str]]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
            for name, shape in shapes.items()
        ]

    graph = helper.make_graph(
        list(nodes), "graph", infos(inputs), infos(outputs), list(initializers)
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    add_shapes(model)
    return model


def parsed_model(
    text: str,
    weights: Mapping[str, np.ndarray] | Iterable[onnx.TensorProto] = (),
    *,
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a checked model with shapes, see `graph_model`."""
    model = graph_model(text, weights, opset=opset)
    onnx.checker.check_model(model)
    add_shapes(model)
    return model


def cnn(*, batch: int | str = 1) -> onnx.ModelProto:
    """Convolutions with ReLU6, pooling, two branches joined, a sigmoid, a classifier.

    images float32 (batch, 3, 16, 16) to scores (batch, 10).
    """
    uneven = np.geomspace(0.05, 1.0, 8, dtype=np.float32).reshape(8, 1, 1, 1)
    w1 = numpy_helper.to_array(weight("w1", 8, 3, 3, 3)) * uneven
    return parsed_model(
        f"(float[{batch},3,16,16] images) => (float[{batch},10] scores) {{ "
        "[conv1] c1 = Conv<pads=[1,1,1,1]>(images, w1, b1) [relu6] r1 = Clip(c1, zero, six) "
        "[pool] p1 = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r1) "
        "[conv2] c2 = Conv<pads=[1,1,1,1]>(p1, w2, b2) [sigmoid] s2 = Sigmoid(c2) "
        "[deconv] c3 = ConvTranspose<pads=[1,1,1,1]>(p1, w3) [relu] r3 = Relu(c3) "
        "[concat] joined = Concat<axis=1>(s2, r3) [average] pooled = GlobalAveragePool(joined) "
        "[flatten] flat = Flatten(pooled) [classify] scores = Gemm<transB=1>(flat, w4, b4) }",
        [
            numpy_helper.from_array(w1, "w1"),
            weight("b1", 8),
            weight("w2", 8, 8, 3, 3),
            weight("b2", 8),
            weight("w3", 8, 8, 3, 3),
            weight("w4", 10, 16, scale=2.0),
            weight("b4", 10),
            constant("zero", 0.0),
            constant("six", 6.0),
        ],
    )


def attention(*, mask_value: float = -3.4e38) -> onnx.ModelProto:
    """One attention head with a causal mask: tokens float32 (1, 8, 16) to mixed (1, 8, 4)."""
    mask = np.triu(np.full((8, 8), mask_value, dtype=np.float32), 1)
    return parsed_model(
        "(float[1,8,16] tokens) => (float[1,8,4] mixed) { [query] q = MatMul(tokens, wq) "
        "[key] k = MatMul(tokens, wk) [value] v = MatMul(tokens, wv) "
        "[transpose] kt = Transpose<perm=[0,2,1]>(k) [scores] raw = MatMul(q, kt) "
        "[scale] scaled = Mul(raw, quarter) [mask_scores] masked = Add(scaled, mask) "
        "[softmax] weights = Softmax<axis=-1>(masked) [mix] mix = MatMul(weights, v) "
        "[project] mixed = MatMul(mix, wo) }",
        [
            weight("wq", 16, 16),
            weight("wk", 16, 16, seed=1),
            weight("wv", 16, 16, seed=2),
            weight("wo", 16, 4),
            constant("quarter", 0.25),
            numpy_helper.from_array(mask, "mask"),
        ],
    )


def samples_for(model: onnx.ModelProto, count: int, *, seed: int = 0) -> Samples:
    """Normally distributed samples, made anew at each reading."""
    shapes = {
        value.name: [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }

    def read(index: int) -> Feeds:
        rng = np.random.default_rng([seed, index])
        return {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}

    return Samples(count=count, read=read, source="made by the test")


def spread_model(spread: float) -> onnx.ModelProto:
    """Its answer, clear scores, lies in small channels beside a huge one, `spread` times as large.

    With 300 no 8 bits hold both, and 16 do; with 1e4 no type does.
    """
    pick = np.array([[0, 0, 0], [35, 0, 0], [0, 35, 0], [0, 0, 35]], dtype=np.float32)
    return parsed_model(
        "(float[1,4] x) => (float[1,3] y) { [easy_layer] h = MatMul(x, easy) "
        "[spread_layer] s = MatMul(h, spread) [pick_layer] y = MatMul(s, pick) }",
        [
            weight("easy", 4, 4),
            numpy_helper.from_array(np.diag([spread, 1.0, 1.0, 1.0]).astype(np.float32), "spread"),
            numpy_helper.from_array(pick, "pick"),
        ],
    )
