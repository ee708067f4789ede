"""`edgepack build` accepts models from exporters, or names the unsupported part."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import InputDeclaration, TokenInput
from tests.graphs import graph_model
from tests.integration.loose_builds import Builder
from tests.integration.source_graphs import (
    model_of,
    node,
    operators_of,
    random_weight,
    two_products,
    value_info,
)


def _old_style(opset: int, *, foreign: bool) -> onnx.ModelProto:
    """Return the main changes from opset 11 to 17: axes, split and softmax over several axes.

    An operator of another domain prevents onnx's own converter from reading the model.
    """
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="product"),
        node("Split", ["h"], ["a", "b"], name="split", axis=1, split=[4, 4]),
        node("Unsqueeze", ["a"], ["a3"], name="unsqueeze", axes=[2]),
        node("Dropout", ["a3"], ["d"], name="dropout"),
        node("Softmax", ["d"], ["s"], name="softmax", axis=1),
        node("Squeeze", ["s"], ["s2"], name="squeeze", axes=[2]),
        node("ReduceSum", ["b"], ["r"], name="sum", axes=[1], keepdims=1),
        node("Mul", ["s2", "r"], ["m"], name="scale"),
        node("Gelu" if foreign else "Relu", ["m"], ["y"], name="last"),
    ]
    if foreign:
        nodes[-1].domain = "com.microsoft"
    if opset < 12:
        nodes[3].attribute.append(helper.make_attribute("ratio", 0.5))
    return model_of(
        nodes,
        [value_info("x", [1, 6])],
        [value_info("y", [1, 4])],
        [random_weight("w", 6, 8)],
        opset=opset,
        domains=["com.microsoft"] if foreign else [],
    )


@pytest.mark.parametrize(("opset", "foreign"), [(11, False), (11, True), (12, True)])
def test_old_operator_sets_are_raised_with_and_without_onnx_own_converter(
    builder: Builder, opset: int, foreign: bool
) -> None:
    built, variant = builder(_old_style(opset, foreign=foreign))
    assert {entry.domain: entry.version for entry in built.opset_import}[""] == 17
    assert variant.accuracy.value > 0.9


def test_a_newer_operator_set_is_lowered_into_the_limits_of_the_profile(builder: Builder) -> None:
    model = graph_model(
        "(float[1,6] x) => (float[1,4] y) { [product] h = MatMul(x, w) "
        "[split] a, b = Split<axis=1, num_outputs=2>(h) "
        "[mean] m = ReduceMean<keepdims=1>(a, axes) [add] y = Add(b, m) }",
        [random_weight("w", 6, 8), numpy_helper.from_array(np.array([1]), "axes")],
        opset=18,
    )
    built, _ = builder(model, "vitisai-xint8")
    assert built.opset_import[0].version == 17
    assert "DequantizeLinear" in operators_of(built)


def test_models_of_other_floats_are_quantized_and_keep_their_inputs_and_outputs(
    builder: Builder,
) -> None:
    for dtype, kind in ((np.float16, TensorProto.FLOAT16), (np.float64, TensorProto.DOUBLE)):
        built, variant = builder(two_products(dtype))
        assert built.graph.input[0].type.tensor_type.elem_type == kind
        assert built.graph.output[0].type.tensor_type.elem_type == kind
        assert sum(op == "DequantizeLinear" for op in operators_of(built)) >= 2
        assert f"The model computes in {np.dtype(dtype)}" in " ".join(variant.notes)


def test_a_bfloat16_model_becomes_a_float32_one(builder: Builder) -> None:
    model = two_products()
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(
            helper.make_tensor(tensor.name, TensorProto.BFLOAT16, values.shape, values.ravel())
        )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    built, _ = builder(model)
    assert built.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert "QuantizeLinear" in operators_of(built)


def test_functions_of_the_model_are_written_out_and_quantized(builder: Builder) -> None:
    body = [node("MatMul", ["a", "b"], ["c"]), node("Relu", ["c"], ["d"])]
    function = helper.make_function(
        "mine", "Layer", ["a", "b"], ["d"], body, [helper.make_opsetid("", 17)]
    )
    model = graph_model(
        "(float[1,8] x) => (float[1,4] y) { h = mine.Layer(x, w1) y = mine.Layer(h, w2) }",
        [random_weight("w1", 8, 16), random_weight("w2", 16, 4)],
    )
    model.functions.append(function)
    built, _ = builder(model)
    assert not built.functions
    assert operators_of(built).count("MatMul") == 2
    assert "QuantizeLinear" in operators_of(built)


def test_sparse_weights_are_quantized_like_others(builder: Builder) -> None:
    model = two_products()
    dense = numpy_helper.to_array(model.graph.initializer[0]).copy()
    dense[dense < 0.2] = 0
    (where,) = np.nonzero(dense.ravel())
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(dense.ravel()[where], "w1"),
        numpy_helper.from_array(where.astype(np.int64), "at"),
        list(dense.shape),
    )
    del model.graph.initializer[0]
    model.graph.sparse_initializer.append(sparse)
    built, variant = builder(model)
    stored = {tensor.data_type for tensor in built.graph.initializer if len(tensor.dims) == 2}
    assert stored == {TensorProto.INT8}
    assert variant.accuracy.value > 0.9


def test_untidy_graphs_are_built(builder: Builder) -> None:
    """The graph has weights in Constant nodes and read twice, equal and empty names, an unused
    input, an output that is an input, initializers listed as inputs, and metadata.
    """
    model = graph_model(
        "(float[1,8] x, float[1,2] unused, float[8] b) => (float[1,8] y, float[1,8] x) { "
        "[same] w = Constant() [same] h = MatMul(x, w) g = MatMul(h, w) [same] y = Add(g, b) }",
        [random_weight("b", 8)],
    )
    value = helper.make_attribute("value", random_weight("", 8, 8))
    model.graph.node[0].attribute.append(value)
    model.metadata_props.add(key="labels", value="a,b")
    built, _ = builder(model)
    assert [value.name for value in built.graph.input] == ["x", "unused"]
    assert [value.name for value in built.graph.output] == ["y", "x"]
    assert [entry.key for entry in built.metadata_props] == ["labels"]
    names = [node.name for node in built.graph.node]
    assert len(set(names)) == len(names)
    assert all(names)
    assert sum(t.data_type == TensorProto.INT8 and len(t.dims) == 2 for t in _stored(built)) == 1


def _stored(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    return list(model.graph.initializer)


def test_tokens_and_several_inputs_and_outputs(builder: Builder) -> None:
    model = graph_model(
        "(int64[batch,length] ids, int64[batch,length] mask) "
        "=> (float[batch,length,4] hidden, float[batch,4] pooled) { "
        f"[embed] rows = Gather(table, ids) [cast] weights = Cast<to={TensorProto.FLOAT}>(mask) "
        "[column] column = Unsqueeze(weights, last) [mask] kept = Mul(rows, column) "
        "[project] hidden = MatMul(kept, w) "
        "[pool] pooled = ReduceMean<axes=[1], keepdims=0>(hidden) }",
        [
            random_weight("table", 50, 8),
            random_weight("w", 8, 4),
            numpy_helper.from_array(np.array([2]), "last"),
        ],
    )
    tokens: dict[str, InputDeclaration] = {
        "ids": TokenInput(vocabulary=50),
        "mask": TokenInput(vocabulary=2),
    }
    built, variant = builder(model, "cpu", tokens, ids=(1, 6), mask=(1, 6))
    assert variant.accuracy.value > 0.5
    assert [dim.dim_value for dim in built.graph.input[0].type.tensor_type.shape.dim] == [1, 6]


def _gained(ir_version: int) -> onnx.ModelProto:
    """Return a product times an input with a default value."""
    model = graph_model(
        "(float[1,8] x, float[1] gain) => (float[1,4] y) { [product] h = MatMul(x, w) "
        "[scale] y = Mul(h, gain) }",
        [random_weight("w", 8, 4), numpy_helper.from_array(np.array([2], np.float32), "gain")],
        opset=11,
    )
    model.ir_version = ir_version
    return model


def test_an_input_with_a_default_value_keeps_it_and_is_named(builder: Builder) -> None:
    built, variant = builder(_gained(ir_version=6))
    assert [value.name for value in built.graph.input] == ["x"]
    assert "QuantizeLinear" in operators_of(built)
    assert variant.accuracy.value > 0.9


def test_weights_that_are_inputs_too_as_the_oldest_format_wants_are_weights(
    builder: Builder,
) -> None:
    model = _gained(ir_version=3)
    model.graph.input.append(value_info("w", [8, 4]))
    built, variant = builder(model)
    assert [value.name for value in built.graph.input] == ["x"]
    assert "QuantizeLinear" in operators_of(built)
    assert variant.accuracy.value > 0.9


def _scikit_learn_classifier() -> onnx.ModelProto:
    """Return a linear classifier in skl2onnx's form: its scores are a list of dicts."""
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    return model_of(
        [
            node(
                "LinearClassifier",
                ["x"],
                ["label", "scores"],
                name="classify",
                domain="ai.onnx.ml",
                coefficients=[0.5, -0.5, 1.0, -1.0],
                intercepts=[0.0, 0.1],
                classlabels_ints=[0, 1],
                post_transform="SOFTMAX",
            ),
            node(
                "ZipMap",
                ["scores"],
                ["probabilities"],
                name="zip",
                domain="ai.onnx.ml",
                classlabels_int64s=[0, 1],
            ),
        ],
        [value_info("x", [1, 2])],
        [
            value_info("label", [1], TensorProto.INT64),
            helper.make_value_info("probabilities", helper.make_sequence_type_proto(kind)),
        ],
        domains=["ai.onnx.ml"],
    )


def _optional() -> onnx.TypeProto:
    return helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [1, 4]))


@pytest.mark.parametrize(
    ("model", "problem", "remedy"),
    [
        (
            model_of(
                [node("Wave", ["x"], ["y"], name="wave", domain="my.lab")],
                [value_info("x", [1, 4])],
                [value_info("y", [1, 4])],
                domains=["my.lab"],
            ),
            "the model uses operators that ONNX Runtime does not have: my.lab.Wave (node 'wave')",
            "export it with standard operators",
        ),
        (
            model_of(
                [node("Identity", ["x"], ["y"], name="same")],
                [value_info("x", [1], TensorProto.STRING)],
                [value_info("y", [1], TensorProto.STRING)],
            ),
            "input 'x' is a tensor of texts",
            "without its text processing",
        ),
        (
            _scikit_learn_classifier(),
            "output 'probabilities' is a sequence: only tensors",
            "options={'zipmap': False}",
        ),
        (
            model_of(
                [node("OptionalGetElement", ["x"], ["y"], name="get")],
                [helper.make_value_info("x", _optional())],
                [value_info("y", [1, 4])],
                opset=18,
            ),
            "input 'x' is an optional value: only tensors",
            "with tensors as inputs and outputs",
        ),
        (
            model_of([], [value_info("x", [1])], [value_info("x", [1])]),
            "the model has no nodes",
            None,
        ),
    ],
)
def test_what_cannot_be_taken_is_named(
    builder: Builder, model: onnx.ModelProto, problem: str, remedy: str | None
) -> None:
    with pytest.raises(BuildError) as caught:
        builder(model)
    assert problem in caught.value.problem
    assert remedy is None or remedy in (caught.value.remedy or "")
