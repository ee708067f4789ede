"""`edgepack build` takes models as they are exported, or says which part of one it cannot take."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import InputDeclaration, TokenInput
from tests.integration.loose_builds import Builder


def _weight(name: str, *shape: int, dtype: type = np.float32) -> onnx.TensorProto:
    rng = np.random.default_rng([len(name), *shape])
    return numpy_helper.from_array((rng.normal(0, 0.5, shape)).astype(dtype), name)


def _value(
    name: str, shape: Sequence[int | str] | None, kind: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


_node = helper.make_node


def _two_products(dtype: type = np.float32, opset: int = 17) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return _model(
        [
            _node("MatMul", ["x", "w1"], ["h"], name="first"),
            _node("Relu", ["h"], ["r"], name="relu"),
            _node("MatMul", ["r", "w2"], ["y"], name="second"),
        ],
        [_value("x", [1, 8], kind)],
        [_value("y", [1, 4], kind)],
        [_weight("w1", 8, 16, dtype=dtype), _weight("w2", 16, 4, dtype=dtype)],
        opset=opset,
    )


def _old_style(opset: int, *, foreign: bool) -> onnx.ModelProto:
    """What changed most from opset 11 to 17: axes, split and softmax over several axes.

    An operator of another domain keeps onnx's own converter from reading it.
    """
    nodes = [
        _node("MatMul", ["x", "w"], ["h"], name="product"),
        _node("Split", ["h"], ["a", "b"], name="split", axis=1, split=[4, 4]),
        _node("Unsqueeze", ["a"], ["a3"], name="unsqueeze", axes=[2]),
        _node("Dropout", ["a3"], ["d"], name="dropout"),
        _node("Softmax", ["d"], ["s"], name="softmax", axis=1),
        _node("Squeeze", ["s"], ["s2"], name="squeeze", axes=[2]),
        _node("ReduceSum", ["b"], ["r"], name="sum", axes=[1], keepdims=1),
        _node("Mul", ["s2", "r"], ["m"], name="scale"),
        _node("Gelu" if foreign else "Relu", ["m"], ["y"], name="last"),
    ]
    if foreign:
        nodes[-1].domain = "com.microsoft"
    if opset < 12:
        nodes[3].attribute.append(helper.make_attribute("ratio", 0.5))
    return _model(
        nodes,
        [_value("x", [1, 6])],
        [_value("y", [1, 4])],
        [_weight("w", 6, 8)],
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
    model = _model(
        [
            _node("MatMul", ["x", "w"], ["h"], name="product"),
            _node("Split", ["h"], ["a", "b"], name="split", axis=1, num_outputs=2),
            _node("ReduceMean", ["a", "axes"], ["m"], name="mean", keepdims=1),
            _node("Add", ["b", "m"], ["y"], name="add"),
        ],
        [_value("x", [1, 6])],
        [_value("y", [1, 4])],
        [_weight("w", 6, 8), numpy_helper.from_array(np.array([1]), "axes")],
        opset=18,
    )
    built, _ = builder(model, "vitisai-xint8")
    assert built.opset_import[0].version == 17
    assert "DequantizeLinear" in _operators(built)


def test_models_of_other_floats_are_quantized_and_keep_their_inputs_and_outputs(
    builder: Builder,
) -> None:
    for dtype, kind in ((np.float16, TensorProto.FLOAT16), (np.float64, TensorProto.DOUBLE)):
        built, variant = builder(_two_products(dtype))
        assert built.graph.input[0].type.tensor_type.elem_type == kind
        assert built.graph.output[0].type.tensor_type.elem_type == kind
        assert sum(op == "DequantizeLinear" for op in _operators(built)) >= 2
        assert f"The model computes in {np.dtype(dtype)}" in " ".join(variant.notes)


def test_a_bfloat16_model_becomes_a_float32_one(builder: Builder) -> None:
    model = _two_products()
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(
            helper.make_tensor(tensor.name, TensorProto.BFLOAT16, values.shape, values.ravel())
        )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    built, _ = builder(model)
    assert built.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert "QuantizeLinear" in _operators(built)


def test_functions_of_the_model_are_written_out_and_quantized(builder: Builder) -> None:
    body = [_node("MatMul", ["a", "b"], ["c"]), _node("Relu", ["c"], ["d"])]
    function = helper.make_function(
        "mine", "Layer", ["a", "b"], ["d"], body, [helper.make_opsetid("", 17)]
    )
    model = _model(
        [
            _node("Layer", ["x", "w1"], ["h"], domain="mine"),
            _node("Layer", ["h", "w2"], ["y"], domain="mine"),
        ],
        [_value("x", [1, 8])],
        [_value("y", [1, 4])],
        [_weight("w1", 8, 16), _weight("w2", 16, 4)],
        domains=["mine"],
    )
    model.functions.append(function)
    built, _ = builder(model)
    assert not built.functions
    assert _operators(built).count("MatMul") == 2
    assert "QuantizeLinear" in _operators(built)


def test_sparse_weights_are_quantized_like_others(builder: Builder) -> None:
    model = _two_products()
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
    """Weights in Constant nodes and read twice, equal and empty names, an unused input, an output
    that is an input, initializers listed as inputs, and metadata."""
    weight = _weight("", 8, 8)
    model = _model(
        [
            _node("Constant", [], ["w"], name="same", value=weight),
            _node("MatMul", ["x", "w"], ["h"], name="same"),
            _node("MatMul", ["h", "w"], ["g"], name=""),
            _node("Add", ["g", "b"], ["y"], name="same"),
        ],
        [_value("x", [1, 8]), _value("unused", [1, 2]), _value("b", [8])],
        [_value("y", [1, 8]), _value("x", [1, 8])],
        [_weight("b", 8)],
    )
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
    model = _model(
        [
            _node("Gather", ["table", "ids"], ["rows"], name="embed"),
            _node("Cast", ["mask"], ["weights"], name="cast", to=TensorProto.FLOAT),
            _node("Unsqueeze", ["weights", "last"], ["column"], name="column"),
            _node("Mul", ["rows", "column"], ["kept"], name="mask"),
            _node("MatMul", ["kept", "w"], ["hidden"], name="project"),
            _node("ReduceMean", ["hidden"], ["pooled"], name="pool", axes=[1], keepdims=0),
        ],
        [
            _value("ids", ["batch", "length"], TensorProto.INT64),
            _value("mask", ["batch", "length"], TensorProto.INT64),
        ],
        [_value("hidden", ["batch", "length", 4]), _value("pooled", ["batch", 4])],
        [
            _weight("table", 50, 8),
            _weight("w", 8, 4),
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


def _with_if(
    condition: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    """A product, then one of two bodies that read a constant of the main graph, then a product."""
    then = helper.make_graph(
        [_node("Add", ["h", "b"], ["t"], name="then_add")], "then", [], [_value("t", None)]
    )
    other = helper.make_graph(
        [_node("MatMul", ["h", "w2"], ["e"], name="else_product")], "else", [], [_value("e", None)]
    )
    return _model(
        [
            _node("MatMul", ["x", "w1"], ["h"], name="first"),
            *condition,
            _node("If", ["c"], ["i"], name="choice", then_branch=then, else_branch=other),
            _node("MatMul", ["i", "w3"], ["y"], name="last"),
        ],
        [_value("x", [1, 8]), *inputs],
        [_value("y", [1, 4])],
        [_weight("w1", 8, 8), _weight("b", 8), _weight("w2", 8, 8), _weight("w3", 8, 4)],
    )


def _with_open_condition() -> onnx.ModelProto:
    greater = _node("Greater", ["rate", "eight"], ["c"], name="compare")
    model = _with_if([greater], [_value("rate", [], TensorProto.FLOAT)])
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), "eight"))
    return model


def test_the_graph_around_control_flow_is_quantized_and_its_bodies_stay_float(
    builder: Builder,
) -> None:
    built, _ = builder(_with_open_condition())
    assert _operators(built).count("If") == 1
    assert _operators(built).count("DequantizeLinear") >= 4
    choice = next(node for node in built.graph.node if node.op_type == "If")
    bodies = [attribute.g for attribute in choice.attribute]
    assert {node.op_type for body in bodies for node in body.node} == {"Add", "MatMul"}
    stored = {tensor.name: tensor.data_type for tensor in built.graph.initializer}
    captured = [stored[node.input[1]] for body in bodies for node in body.node]
    assert captured == [TensorProto.FLOAT, TensorProto.FLOAT]


def test_a_loop_is_kept_and_the_graph_around_it_quantized(builder: Builder) -> None:
    body = helper.make_graph(
        [
            _node("Add", ["state", "b"], ["next"], name="step"),
            _node("Identity", ["go"], ["go_on"], name="on"),
        ],
        "body",
        [
            _value("i", [], TensorProto.INT64),
            _value("go", [], TensorProto.BOOL),
            _value("state", [1, 8]),
        ],
        [_value("go_on", [], TensorProto.BOOL), _value("next", [1, 8])],
    )
    model = _model(
        [
            _node("MatMul", ["x", "w1"], ["h"], name="first"),
            _node("Loop", ["n", "", "h"], ["looped"], name="loop", body=body),
            _node("MatMul", ["looped", "w2"], ["y"], name="last"),
        ],
        [_value("x", [1, 8]), _value("n", [], TensorProto.INT64)],
        [_value("y", [1, 4])],
        [_weight("w1", 8, 8), _weight("b", 8), _weight("w2", 8, 4)],
    )
    tokens: dict[str, InputDeclaration] = {"n": TokenInput(vocabulary=4)}
    built, variant = builder(model, "cpu", tokens)
    assert "Loop" in _operators(built)
    assert "QuantizeLinear" in _operators(built)
    assert variant.accuracy.value > 0.8


def test_a_scan_is_kept_and_the_graph_around_it_quantized(builder: Builder) -> None:
    body = helper.make_graph(
        [
            _node("MatMul", ["row", "w1"], ["step"], name="step"),
            _node("Add", ["sum", "step"], ["next"], name="add"),
            _node("Relu", ["next"], ["shown"], name="show"),
        ],
        "body",
        [_value("sum", [8]), _value("row", [8])],
        [_value("next", [8]), _value("shown", [8])],
    )
    model = _model(
        [
            _node("MatMul", ["x", "w2"], ["h"], name="first"),
            _node("Scan", ["b", "h"], ["last", "all"], "scan", body=body, num_scan_inputs=1),
            _node("MatMul", ["all", "w3"], ["y"], name="last"),
        ],
        [_value("x", [6, 4])],
        [_value("y", [6, 4]), _value("last", [8])],
        [_weight("w1", 8, 8), _weight("w2", 4, 8), _weight("w3", 8, 4), _weight("b", 8)],
    )
    built, variant = builder(model)
    assert _operators(built).count("Scan") == 1
    assert _operators(built).count("DequantizeLinear") >= 4
    scan = next(node for node in built.graph.node if node.op_type == "Scan")
    (body_kept,) = (entry.g for entry in scan.attribute if entry.name == "body")
    assert not any("Linear" in node.op_type for node in body_kept.node), "bodies stay float"
    assert variant.accuracy.value > 0.9
    with pytest.raises(BuildError, match=r"cannot run 1 node: scan \(Scan\)"):
        builder(model, "vitisai-xint8")


def _gained(ir_version: int) -> onnx.ModelProto:
    """A product times an input that has a default value."""
    model = _model(
        [
            _node("MatMul", ["x", "w"], ["h"], name="product"),
            _node("Mul", ["h", "gain"], ["y"], name="scale"),
        ],
        [_value("x", [1, 8]), _value("gain", [1])],
        [_value("y", [1, 4])],
        [_weight("w", 8, 4), numpy_helper.from_array(np.array([2], np.float32), "gain")],
        opset=11,
    )
    model.ir_version = ir_version
    return model


def test_an_input_with_a_default_value_keeps_it_and_is_named(builder: Builder) -> None:
    built, variant = builder(_gained(ir_version=6))
    assert [value.name for value in built.graph.input] == ["x"]
    assert "QuantizeLinear" in _operators(built)
    assert variant.accuracy.value > 0.9


def test_weights_that_are_inputs_too_as_the_oldest_format_wants_are_weights(
    builder: Builder,
) -> None:
    model = _gained(ir_version=3)
    model.graph.input.append(_value("w", [8, 4]))
    built, variant = builder(model)
    assert [value.name for value in built.graph.input] == ["x"]
    assert "QuantizeLinear" in _operators(built)
    assert variant.accuracy.value > 0.9


def test_control_flow_is_folded_away_where_its_condition_is_constant(builder: Builder) -> None:
    condition = [
        _node("Shape", ["x"], ["shape"], name="shape"),
        _node("Gather", ["shape", "zero"], ["size"], name="size"),
        _node("Equal", ["size", "one"], ["c"], name="compare"),
    ]
    model = _with_if(condition, [])
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "zero"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(1), "one"))
    built, _ = builder(model, "vitisai-xint8")
    assert "If" not in _operators(built)
    assert sum(op in ("MatMul", "Gemm") for op in _operators(built)) == 2


def test_where_the_provider_has_no_control_flow_both_branches_are_computed(
    builder: Builder,
) -> None:
    built, variant = builder(_with_open_condition(), "vitisai-xint8")
    assert "If" not in _operators(built)
    assert "Where" in _operators(built)
    assert sum(op in ("MatMul", "Gemm") for op in _operators(built)) == 3
    assert any("Both branches of choice are computed" in note for note in variant.notes)
    assert variant.accuracy.value > 0.9


def test_control_flow_that_stays_is_refused_by_name_where_the_provider_has_none(
    builder: Builder,
) -> None:
    model = _with_open_condition()
    choice, last = model.graph.node[-2:]
    then = next(entry.g for entry in choice.attribute if entry.name == "then_branch")
    then.node[0].output[0] = "sum"
    then.node.append(_node("Transpose", ["sum"], ["t"], name="turn"))
    last.input[0] = "row"
    model.graph.node.insert(3, _node("Reshape", ["i", "as_row"], ["row"], name="as_row"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 8]), "as_row"))
    with pytest.raises(BuildError) as caught:
        builder(model, "vitisai-xint8")
    assert "cannot run 1 node: choice (If)" in caught.value.problem
    assert "its condition depends on the input 'rate'" in caught.value.problem
    assert "export the model without control flow" in (caught.value.remedy or "")


def test_with_the_deciding_input_fixed_the_taken_branch_is_quantized(
    builder: Builder, tmp_path: Path
) -> None:
    built, variant = builder(_with_open_condition(), "vitisai-xint8", values={"rate": (-1.0,)})
    assert "If" not in _operators(built)
    assert sum(op in ("MatMul", "Gemm") for op in _operators(built)) == 3, "the else branch"
    assert [value.name for value in built.graph.input] == ["x"]
    assert variant.accuracy.value > 0.9
    with np.load(tmp_path / "model-1.0.0" / "golden" / "golden.npz") as golden:
        assert not any("rate" in name for name in golden.files)


def _scikit_learn_classifier() -> onnx.ModelProto:
    """A linear classifier as skl2onnx exports it: its scores come as a list of dicts."""
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, []))
    return _model(
        [
            _node(
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
            _node(
                "ZipMap",
                ["scores"],
                ["probabilities"],
                name="zip",
                domain="ai.onnx.ml",
                classlabels_int64s=[0, 1],
            ),
        ],
        [_value("x", [1, 2])],
        [
            _value("label", [1], TensorProto.INT64),
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
            _model(
                [_node("Wave", ["x"], ["y"], name="wave", domain="my.lab")],
                [_value("x", [1, 4])],
                [_value("y", [1, 4])],
                domains=["my.lab"],
            ),
            "the model uses operators that ONNX Runtime does not have: my.lab.Wave (node 'wave')",
            "export it with standard operators",
        ),
        (
            _model(
                [_node("Identity", ["x"], ["y"], name="same")],
                [_value("x", [1], TensorProto.STRING)],
                [_value("y", [1], TensorProto.STRING)],
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
            _model(
                [_node("OptionalGetElement", ["x"], ["y"], name="get")],
                [helper.make_value_info("x", _optional())],
                [_value("y", [1, 4])],
                opset=18,
            ),
            "input 'x' is an optional value: only tensors",
            "with tensors as inputs and outputs",
        ),
        (
            _model([], [_value("x", [1])], [_value("x", [1])]),
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


def test_nan_in_the_body_of_control_flow_is_named(builder: Builder) -> None:
    model = _with_open_condition()
    choice = next(node for node in model.graph.node if node.op_type == "If")
    bad = numpy_helper.from_array(np.array([np.nan], np.float32), "bad")
    choice.attribute[0].g.initializer.append(bad)
    with pytest.raises(BuildError) as caught:
        builder(model)
    assert "1 of 1 values of weight 'bad' are NaN" in caught.value.problem


def _pair(
    name: str, source: str, scale: float, kind: type = np.uint8, zero_point: int = 128
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """A QuantizeLinear and a DequantizeLinear; the tensor after them is `name`."""
    parameters = [f"{name}_scale", f"{name}_zero"]
    return (
        [
            _node("QuantizeLinear", [source, *parameters], [f"{name}_q"], name=f"{name}_Q"),
            _node("DequantizeLinear", [f"{name}_q", *parameters], [name], name=f"{name}_DQ"),
        ],
        [
            numpy_helper.from_array(np.array(scale, np.float32), parameters[0]),
            numpy_helper.from_array(np.array(zero_point, kind), parameters[1]),
        ],
    )


def _trained_with_integers() -> onnx.ModelProto:
    """Two products with pairs before and between them, the second one left in floats."""
    before, parameters = _pair("xd", "x", 0.03)
    between, more = _pair("rd", "r", 0.05, np.uint8, 0)
    integers = np.random.default_rng(3).integers(-127, 128, (8, 16)).astype(np.int8)
    nodes = [
        *before,
        _node("DequantizeLinear", ["w1q", "w1s"], ["w1"], name="w1_DQ"),
        _node("MatMul", ["xd", "w1"], ["h"], name="first"),
        _node("Relu", ["h"], ["r"], name="relu"),
        *between,
        _node("MatMul", ["rd", "w2"], ["y"], name="second"),
    ]
    return _model(
        nodes,
        [_value("x", [1, 8])],
        [_value("y", [1, 4])],
        [
            *parameters,
            *more,
            numpy_helper.from_array(integers, "w1q"),
            numpy_helper.from_array(np.array(0.004, np.float32), "w1s"),
            _weight("w2", 16, 4),
        ],
    )


@pytest.mark.parametrize("profile", ["fp32", "cpu", "vitisai-xint8"])
def test_a_model_that_comes_quantized_keeps_its_own_scales(builder: Builder, profile: str) -> None:
    source = _trained_with_integers()
    built, variant = builder(source, profile)
    assert variant.precision == "a8w8"
    assert _operators(built).count("QuantizeLinear") == 2, "nothing is quantized twice"
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in built.graph.initializer}
    for tensor in source.graph.initializer:
        if tensor.name.endswith("_scale") or tensor.name in ("w1q", "w2"):
            assert (stored[tensor.name] == numpy_helper.to_array(tensor)).all(), tensor.name
    assert "The model comes quantized (a8w8): its own scales are kept." in variant.notes
    assert variant.accuracy.value > 0.99
    notes = " ".join(variant.notes)
    assert ("would make scales that are powers of two" in notes) == (profile == "vitisai-xint8")


def _convolution_between_pairs(*, float_weights: bool) -> onnx.ModelProto:
    """A convolution between pairs with a float bias, as training with pairs leaves it.

    Its channels are of very different size, so that one scale for all of them would be far off.
    """
    before, parameters = _pair("xd", "x", 0.03)
    after, more = _pair("y", "c", 0.05)
    size = np.geomspace(0.01, 4, 6, dtype=np.float32)[:, None, None, None]
    weight = numpy_helper.to_array(_weight("w", 6, 3, 3, 3)) * size
    scale = np.abs(weight).max((1, 2, 3)) / 127
    integers = np.round(weight / scale[:, None, None, None]).astype(np.int8)
    dequantize = _node("DequantizeLinear", ["w_q", "w_s"], ["w"], name="w_DQ", axis=0)
    stored = [numpy_helper.from_array(integers, "w_q"), numpy_helper.from_array(scale, "w_s")]
    if float_weights:
        stored = [numpy_helper.from_array(weight, "w")]
    return _model(
        [
            *before,
            *(() if float_weights else (dequantize,)),
            _node("Conv", ["xd", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1]),
            *after,
        ],
        [_value("x", [1, 3, 8, 8])],
        [_value("y", [1, 6, 8, 8])],
        [*parameters, *more, *stored, _weight("b", 6)],
    )


@pytest.mark.parametrize("float_weights", [False, True])
@pytest.mark.parametrize("profile", ["cpu", "vitisai-xint8", "qnn-htp-a8w8"])
def test_what_a_quantized_model_leaves_in_floats_stays_so(
    builder: Builder, profile: str, float_weights: bool
) -> None:
    source = _convolution_between_pairs(float_weights=float_weights)
    built, variant = builder(source, profile)
    assert _operators(built).count("DequantizeLinear") == (2 if float_weights else 3)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in built.graph.initializer}
    for tensor in source.graph.initializer:
        if tensor.name in ("b", "w", "w_q", "w_s", "xd_scale", "y_scale"):
            assert (stored[tensor.name] == numpy_helper.to_array(tensor)).all(), tensor.name
    assert variant.precision == ("a8" if float_weights else "a8w8")


def test_a_model_of_integer_operators_is_passed_through(builder: Builder) -> None:
    before, parameters = _pair("xd", "x", 0.03)
    scalar = np.array
    model = _model(
        [
            before[0],
            _node(
                "QLinearMatMul",
                ["xd_q", "xd_scale", "xd_zero", "w", "ws", "wz", "ys", "yz"],
                ["yq"],
                name="product",
            ),
            _node("DequantizeLinear", ["yq", "ys", "yz"], ["y"], name="out"),
        ],
        [_value("x", [1, 8])],
        [_value("y", [1, 4])],
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
    assert _operators(built) == ["QuantizeLinear", "QLinearMatMul", "DequantizeLinear"]
    assert variant.precision == "int8"
    assert "where the model has QLinearMatMul" in " ".join(variant.notes)


def test_a_quantized_model_is_refused_where_the_provider_quantizes_by_itself(
    builder: Builder,
) -> None:
    with pytest.raises(BuildError) as caught:
        builder(_trained_with_integers(), "vitisai-bf16")
    assert "it would be quantized twice" in caught.value.problem
    assert caught.value.remedy == "give the float model it was made from"
