"""Attributes that nodes leave to their defaults, written out for compilers that need them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.explicit_attributes import find_implicit, write_defaults
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.profiles.reading import list_profiles, load_profile

ALL = ("Conv", "ConvTranspose", "AveragePool", "MaxPool")


def _model(
    op_type: str, sizes: Sequence[int], kernel: Sequence[int], **given: Any
) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = []
    if op_type.startswith("Conv"):
        values = rng.normal(size=(4, 4, *kernel)).astype(np.float32)
        weights = [numpy_helper.from_array(values, "w")]
    else:
        given["kernel_shape"] = list(kernel)
    node = helper.make_node(op_type, ["x", *(it.name for it in weights)], ["y"], "node", **given)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, *sizes])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _run(model: onnx.ModelProto) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    shape = session.get_inputs()[0].shape
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


@pytest.mark.parametrize("sizes", [(9,), (9, 10), (7, 8, 9)], ids=["1-d", "2-d", "3-d"])
@pytest.mark.parametrize("auto_pad", [None, "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("strides", [None, 2, 3])
@pytest.mark.parametrize("op_type", ALL)
def test_written_attributes_compute_what_the_defaults_do(
    op_type: str, strides: int | None, auto_pad: str | None, sizes: tuple[int, ...]
) -> None:
    given: dict[str, Any] = {"auto_pad": auto_pad} if auto_pad else {}
    if strides:
        given["strides"] = [strides] * len(sizes)
    model = _model(op_type, sizes, [4, 3, 3][: len(sizes)], **given)
    expected = _run(model)
    add_shapes(model)
    assert find_implicit(model, ALL)
    write_defaults(model, ALL)
    assert find_implicit(model, ALL) == {}
    assert "auto_pad" not in {entry.name for entry in model.graph.node[0].attribute}
    np.testing.assert_array_equal(_run(model), expected)


def test_a_transposed_convolution_with_an_output_shape_gets_its_pads() -> None:
    for wanted in (17, 18, 19):
        model = _model("ConvTranspose", (9,), [3], strides=[2], output_shape=[wanted])
        expected = _run(model)
        add_shapes(model)
        write_defaults(model, ALL)
        assert find_implicit(model, ALL) == {}
        np.testing.assert_array_equal(_run(model), expected)


def test_a_kernel_is_read_through_the_pair_of_its_weight() -> None:
    model = _model("Conv", (9, 9), [3, 3])
    graph = model.graph
    scale = numpy_helper.from_array(np.array(0.1, np.float32), "scale")
    graph.initializer.append(scale)
    weight = graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(np.ones((4, 4, 3, 3), np.int8), "w_q"))
    pair = helper.make_node("DequantizeLinear", ["w_q", "scale"], ["w"], domain="com.microsoft")
    graph.node.insert(0, pair)
    write_defaults(model, ALL)
    assert find_implicit(model, ALL) == {}


def test_what_depends_on_an_open_size_is_left_and_found() -> None:
    model = _model("Conv", (9,), [3], auto_pad="SAME_UPPER", strides=[2])
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "n"
    write_defaults(model, ALL)
    assert find_implicit(model, ALL) == {"node": ("pads",)}


def test_every_profile_for_amd_keeps_its_compiler_from_what_it_crashes_on() -> None:
    profiles = [load_profile(name) for name in list_profiles() if name.startswith("vitisai-")]
    assert len(profiles) == 4
    for profile in profiles:
        limits = profile.limits
        assert set(ALL) <= set(limits.explicit_attributes), profile.name
        for op_type in ("LSTM", "GRU", "If"):
            assert op_type in limits.forbidden_ops, profile.name
            assert "Ryzen AI 1.8" in limits.forbidden_because[op_type], "the source"
