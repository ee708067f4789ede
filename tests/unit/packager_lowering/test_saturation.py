"""Whether sums of two products pass 16 bits is known from the weights."""

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from edgepack.packager.graph.saturation import may_saturate
from tests.graphs import graph_model
from tests.integration.source_graphs import model_of, node, value_info


def _product(
    weight: npt.NDArray[np.generic], activations: npt.DTypeLike | None = np.uint8
) -> onnx.GraphProto:
    pair = []
    if activations is not None:
        pair = [
            node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
            node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        ]
    nodes = [
        *pair,
        node("DequantizeLinear", ["w", "xs"], ["wd"]),
        node("MatMul", ["xd" if pair else "x", "wd"], ["y"]),
    ]
    constants = {"xs": np.float32(1), "w": weight, "xz": np.zeros((), activations or np.uint8)}
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    return model_of(nodes, [value_info("x", [1, 2])], [value_info("y", [1, 2])], stored).graph


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ([[127, 2], [0, 0]], True),
        ([[127, 1], [0, 0]], False),
        ([[-128, -1], [0, 0]], True),
        ([[-128, 0], [0, 0]], False),
        ([[64, 64], [64, -64]], False),
        ([[127, -128], [0, 0]], False),
    ],
)
def test_the_two_largest_weights_of_a_sign_decide(weight: list[list[int]], expected: bool) -> None:
    assert may_saturate(_product(np.array(weight, np.int8))) is expected


def test_only_signed_weights_beside_8_bit_activations_saturate() -> None:
    most = np.full((2, 2), 127, np.int8)
    assert may_saturate(_product(most))
    assert may_saturate(_product(most, np.int8))
    assert not may_saturate(_product(most.astype(np.uint8)))
    assert not may_saturate(_product(most, np.uint16))
    assert not may_saturate(_product(most, None)), "weights alone"


def test_integer_operators_saturate_too() -> None:
    weight = numpy_helper.from_array(np.full((2, 2), 127, np.int8), "w")
    graph = graph_model(
        "(float[1,2] x) => (int32[1,2] y) { xq, xs, xz = DynamicQuantizeLinear(x) "
        "y = MatMulInteger(xq, w, xz) }",
        [weight],
    ).graph
    assert may_saturate(graph)


@pytest.mark.parametrize(("largest", "expected"), [(1.27, True), (0.5, False)])
@pytest.mark.parametrize("axis", [None, 1])
def test_weights_that_training_leaves_as_floats_are_looked_at_as_what_they_become(
    largest: float, expected: bool, axis: int | None
) -> None:
    scales = np.float32(0.01) if axis is None else np.full(2, 0.01, np.float32)
    zeros = np.zeros(np.shape(scales), np.int8)
    constants = {
        "xs": np.float32(1),
        "xz": np.uint8(0),
        "ws": scales,
        "wz": zeros,
        "w": np.full((2, 2), largest, np.float32),
    }
    model = graph_model(
        "(float[1,2] x) => (float[1,2] y) { xq = QuantizeLinear(x, xs, xz) "
        "xd = DequantizeLinear(xq, xs, xz) wq = QuantizeLinear<axis=1>(w, ws, wz) "
        "wd = DequantizeLinear<axis=1>(wq, ws, wz) y = MatMul(xd, wd) }",
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    assert may_saturate(model.graph) is expected


@pytest.mark.parametrize("is_moved", [False, True])
def test_weights_in_constant_nodes_and_behind_moves_are_looked_at(is_moved: bool) -> None:
    graph = _product(np.full((2, 2), 127, np.int8))
    (weight,) = (tensor for tensor in graph.initializer if tensor.name == "w")
    graph.initializer.remove(weight)
    weight.name = "before" if is_moved else "w"
    if is_moved:
        graph.initializer.append(weight)
        graph.node.insert(0, node("Transpose", ["before"], ["w"], perm=[1, 0]))
    else:
        graph.node.insert(0, node("Constant", [], ["w"], value=weight))
    assert may_saturate(graph)
