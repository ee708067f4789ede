"""Models that come quantized keep their own scales, and are never quantized twice."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepack.errors import BuildError
from tests.graphs import graph_model
from tests.integration.loose_builds import Builder
from tests.integration.source_graphs import model_of, node, operators_of, random_weight, value_info


def _pair(
    name: str, source: str, scale: float, kind: type = np.uint8, zero_point: int = 128
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return a QuantizeLinear and a DequantizeLinear; the tensor after both is `name`."""
    parameters = [f"{name}_scale", f"{name}_zero"]
    return (
        [
            node("QuantizeLinear", [source, *parameters], [f"{name}_q"], name=f"{name}_Q"),
            node("DequantizeLinear", [f"{name}_q", *parameters], [name], name=f"{name}_DQ"),
        ],
        [
            numpy_helper.from_array(np.array(scale, np.float32), parameters[0]),
            numpy_helper.from_array(np.array(zero_point, kind), parameters[1]),
        ],
    )


def _trained_with_integers(
    scales: tuple[float, float, float] = (0.03, 0.05, 0.004),
) -> onnx.ModelProto:
    """Return two products with pairs before and between, the second product in floats."""
    before, parameters = _pair("xd", "x", scales[0])
    between, more = _pair("rd", "r", scales[1], np.uint8, 0)
    integers = np.random.default_rng(3).integers(-127, 128, (8, 16)).astype(np.int8)
    nodes = [
        *before,
        node("DequantizeLinear", ["w1q", "w1s"], ["w1"], name="w1_DQ"),
        node("MatMul", ["xd", "w1"], ["h"], name="first"),
        node("Relu", ["h"], ["r"], name="relu"),
        *between,
        node("MatMul", ["rd", "w2"], ["y"], name="second"),
    ]
    return model_of(
        nodes,
        [value_info("x", [1, 8])],
        [value_info("y", [1, 4])],
        [
            *parameters,
            *more,
            numpy_helper.from_array(integers, "w1q"),
            numpy_helper.from_array(np.array(scales[2], np.float32), "w1s"),
            random_weight("w2", 16, 4),
        ],
    )


_POWERS_OF_TWO = (1 / 32, 1 / 16, 1 / 256)


@pytest.mark.parametrize("profile", ["fp32", "cpu", "vitisai-xint8"])
def test_a_model_that_comes_quantized_keeps_its_own_scales(builder: Builder, profile: str) -> None:
    source = _trained_with_integers(*([_POWERS_OF_TWO] if profile == "vitisai-xint8" else []))
    built, variant = builder(source, profile)
    assert variant.precision == "a8w8"
    assert operators_of(built).count("QuantizeLinear") == 2, "nothing is quantized twice"
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in built.graph.initializer}
    for tensor in source.graph.initializer:
        if tensor.name.endswith("_scale") or tensor.name in ("w1q", "w2"):
            assert (stored[tensor.name] == numpy_helper.to_array(tensor)).all(), tensor.name
    assert "The model comes quantized (a8w8): its own scales are kept." in variant.notes
    assert variant.accuracy.value > 0.99


def test_a_profile_of_powers_of_two_rejects_other_scales(builder: Builder) -> None:
    with pytest.raises(BuildError) as caught:
        builder(_trained_with_integers((1 / 32, 0.05, 1 / 256)), "vitisai-xint8")
    assert "a8w8" in caught.value.problem
    assert "1 scale other than a power of two" in caught.value.problem
    assert caught.value.found_in == "scale rd_scale"
    assert caught.value.remedy is not None
    assert "the float model" in caught.value.remedy
    assert "--profile vitisai-a8w8" in caught.value.remedy
    _, variant = builder(_trained_with_integers((1 / 32, 0.05, 1 / 256)), "vitisai-a8w8")
    assert variant.precision == "a8w8"


def _of_weights_alone() -> onnx.ModelProto:
    """Return two products of floats with weights stored as bytes."""
    integers = np.random.default_rng(3).integers(-127, 128, (2, 16, 16)).astype(np.int8)
    stored = {
        "w1q": integers[0],
        "w1s": np.array(0.004, np.float32),
        "w2q": integers[1],
        "w2s": np.linspace(0.001, 0.01, 16, dtype=np.float32),
    }
    return graph_model(
        "(float[1,16] x) => (float[1,16] y) { [w1_DQ] w1 = DequantizeLinear(w1q, w1s) "
        "[first] h = MatMul(x, w1) [relu] r = Relu(h) "
        "[w2_DQ] w2 = DequantizeLinear<axis=1>(w2q, w2s) [second] y = MatMul(r, w2) }",
        stored,
    )


@pytest.mark.parametrize(
    ("profile", "precision"),
    [("vitisai-xint8", "xint8"), ("qnn-htp-a8w8", "a8w8"), ("cpu-int4", "w8"), ("fp32", "w8")],
)
def test_weights_alone_are_passed_on_only_where_floats_are_wanted_beside_them(
    builder: Builder, profile: str, precision: str
) -> None:
    built, variant = builder(_of_weights_alone(), profile)
    assert variant.precision == precision
    assert ("QuantizeLinear" in operators_of(built)) == (precision != "w8")
    assert variant.accuracy.value > 0.98
    told = any(note.startswith("The weights alone come quantized (w8)") for note in variant.notes)
    assert told == (precision != "w8")


def _convolution_between_pairs(*, float_weights: bool, has_powers_of_two: bool) -> onnx.ModelProto:
    """Return a convolution between pairs with a float bias, as after training with pairs.

    Its channels differ much in size, so that a common scale would be far off.
    """
    before, parameters = _pair("xd", "x", 1 / 32 if has_powers_of_two else 0.03)
    after, more = _pair("y", "c", 1 / 16 if has_powers_of_two else 0.05)
    size = np.geomspace(0.01, 4, 6, dtype=np.float32)[:, None, None, None]
    weight = numpy_helper.to_array(random_weight("w", 6, 3, 3, 3)) * size
    scale = np.abs(weight).max((1, 2, 3)) / 127
    if has_powers_of_two:
        scale = np.exp2(np.ceil(np.log2(scale)))
    integers = np.round(weight / scale[:, None, None, None]).astype(np.int8)
    dequantize = node("DequantizeLinear", ["w_q", "w_s"], ["w"], name="w_DQ", axis=0)
    stored = [numpy_helper.from_array(integers, "w_q"), numpy_helper.from_array(scale, "w_s")]
    if float_weights:
        stored = [numpy_helper.from_array(weight, "w")]
    return model_of(
        [
            *before,
            *(() if float_weights else (dequantize,)),
            node("Conv", ["xd", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            *after,
        ],
        [value_info("x", [1, 3, 8, 8])],
        [value_info("y", [1, 6, 8, 8])],
        [*parameters, *more, *stored, random_weight("b", 6)],
    )


@pytest.mark.parametrize("float_weights", [False, True])
@pytest.mark.parametrize("profile", ["cpu", "vitisai-xint8", "qnn-htp-a8w8"])
def test_what_a_quantized_model_leaves_in_floats_stays_so(
    builder: Builder, profile: str, float_weights: bool
) -> None:
    source = _convolution_between_pairs(
        float_weights=float_weights, has_powers_of_two=profile == "vitisai-xint8"
    )
    built, variant = builder(source, profile)
    assert operators_of(built).count("DequantizeLinear") == (2 if float_weights else 3)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in built.graph.initializer}
    for tensor in source.graph.initializer:
        if tensor.name in ("b", "w", "w_q", "w_s", "xd_scale", "y_scale"):
            assert (stored[tensor.name] == numpy_helper.to_array(tensor)).all(), tensor.name
    assert variant.precision == ("a8" if float_weights else "a8w8")


def test_a_model_of_integer_operators_is_passed_through(builder: Builder) -> None:
    before, parameters = _pair("xd", "x", 0.03)
    scalar = np.array
    model = model_of(
        [
            before[0],
            node(
                "QLinearMatMul",
                ["xd_q", "xd_scale", "xd_zero", "w", "ws", "wz", "ys", "yz"],
                ["yq"],
                name="product",
            ),
            node("DequantizeLinear", ["yq", "ys", "yz"], ["y"], name="out"),
        ],
        [value_info("x", [1, 8])],
        [value_info("y", [1, 4])],
        [
            *parameters,
            numpy_helper.from_array(scalar([[1, -2, 3, 4]] * 8, np.int8), "w"),
            numpy_helper.from_array(scalar(0.1, np.float32), "ws"),
            numpy_helper.from_array(scalar(0, np.int8), "wz"),
            numpy_helper.from_array(scalar(0.05, np.float32), "ys"),
            numpy_helper.from_array(scalar(128, np.uint8), "yz"),
        ],
    )
    built, variant = builder(model)
    assert operators_of(built) == ["QuantizeLinear", "QLinearMatMul", "DequantizeLinear"]
    assert variant.precision == "int8"
    assert "where the model has QLinearMatMul" in " ".join(variant.notes)


def test_a_quantized_model_is_refused_where_the_provider_quantizes_by_itself(
    builder: Builder,
) -> None:
    with pytest.raises(BuildError) as caught:
        builder(_trained_with_integers(), "vitisai-bf16")
    assert "it would be quantized twice" in caught.value.problem
    assert caught.value.remedy == "give the float model it was made from"
