"""Models with If, Loop and Scan: bodies stay float, are folded away, or are refused by name."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import InputDeclaration, TokenInput
from tests.graphs import graph_model
from tests.integration.loose_builds import Builder
from tests.integration.source_graphs import model_of, node, operators_of, random_weight, value_info


def _with_if(
    condition: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    """Return a product, then one of two bodies that read a constant of the main graph, then a
    product.
    """
    then = helper.make_graph(
        [node("Add", ["h", "b"], ["t"], name="then_add")], "then", [], [value_info("t", None)]
    )
    other = helper.make_graph(
        [node("MatMul", ["h", "w2"], ["e"], name="else_product")],
        "else",
        [],
        [value_info("e", None)],
    )
    return model_of(
        [
            node("MatMul", ["x", "w1"], ["h"], name="first"),
            *condition,
            node("If", ["c"], ["i"], name="choice", then_branch=then, else_branch=other),
            node("MatMul", ["i", "w3"], ["y"], name="last"),
        ],
        [value_info("x", [1, 8]), *inputs],
        [value_info("y", [1, 4])],
        [
            random_weight("w1", 8, 8),
            random_weight("b", 8),
            random_weight("w2", 8, 8),
            random_weight("w3", 8, 4),
        ],
    )


def _with_open_condition() -> onnx.ModelProto:
    greater = node("Greater", ["rate", "eight"], ["c"], name="compare")
    model = _with_if([greater], [value_info("rate", [], TensorProto.FLOAT)])
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), "eight"))
    return model


def test_the_graph_around_control_flow_is_quantized_and_its_bodies_stay_float(
    builder: Builder,
) -> None:
    built, _ = builder(_with_open_condition())
    assert operators_of(built).count("If") == 1
    assert operators_of(built).count("DequantizeLinear") >= 4
    choice = next(node for node in built.graph.node if node.op_type == "If")
    bodies = [attribute.g for attribute in choice.attribute]
    assert {node.op_type for body in bodies for node in body.node} == {"Add", "MatMul"}
    stored = {tensor.name: tensor.data_type for tensor in built.graph.initializer}
    captured = [stored[node.input[1]] for body in bodies for node in body.node]
    assert captured == [TensorProto.FLOAT, TensorProto.FLOAT]


def test_a_loop_is_kept_and_the_graph_around_it_quantized(builder: Builder) -> None:
    model = graph_model(
        "(float[1,8] x, int64 n) => (float[1,4] y) { [first] h = MatMul(x, w1) "
        "[loop] looped = Loop<body = body (int64 i, bool go, float[1,8] state) => (bool go_on, "
        'float[1,8] next) { [step] next = Add(state, b) [on] go_on = Identity(go) }>(n, "", h) '
        "[last] y = MatMul(looped, w2) }",
        [random_weight("w1", 8, 8), random_weight("b", 8), random_weight("w2", 8, 4)],
    )
    tokens: dict[str, InputDeclaration] = {"n": TokenInput(vocabulary=4)}
    built, variant = builder(model, "cpu", tokens)
    assert "Loop" in operators_of(built)
    assert "QuantizeLinear" in operators_of(built)
    assert variant.accuracy.value > 0.8


def test_a_scan_is_kept_and_the_graph_around_it_quantized(builder: Builder) -> None:
    body = helper.make_graph(
        [
            node("MatMul", ["row", "w1"], ["step"], name="step"),
            node("Add", ["sum", "step"], ["next"], name="add"),
            node("Relu", ["next"], ["shown"], name="show"),
        ],
        "body",
        [value_info("sum", [8]), value_info("row", [8])],
        [value_info("next", [8]), value_info("shown", [8])],
    )
    model = model_of(
        [
            node("MatMul", ["x", "w2"], ["h"], name="first"),
            node("Scan", ["b", "h"], ["last", "all"], "scan", body=body, num_scan_inputs=1),
            node("MatMul", ["all", "w3"], ["y"], name="last"),
        ],
        [value_info("x", [6, 4])],
        [value_info("y", [6, 4]), value_info("last", [8])],
        [
            random_weight("w1", 8, 8),
            random_weight("w2", 4, 8),
            random_weight("w3", 8, 4),
            random_weight("b", 8),
        ],
    )
    built, variant = builder(model)
    assert operators_of(built).count("Scan") == 1
    assert operators_of(built).count("DequantizeLinear") >= 4
    scan = next(node for node in built.graph.node if node.op_type == "Scan")
    (body_kept,) = (entry.g for entry in scan.attribute if entry.name == "body")
    assert not any("Linear" in node.op_type for node in body_kept.node), "bodies stay float"
    assert variant.accuracy.value > 0.9
    with pytest.raises(BuildError, match=r"cannot run 1 node: scan \(Scan\)"):
        builder(model, "vitisai-xint8")


def test_control_flow_is_folded_away_where_its_condition_is_constant(builder: Builder) -> None:
    condition = [
        node("Shape", ["x"], ["shape"], name="shape"),
        node("Gather", ["shape", "zero"], ["size"], name="size"),
        node("Equal", ["size", "one"], ["c"], name="compare"),
    ]
    model = _with_if(condition, [])
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "zero"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(1), "one"))
    built, _ = builder(model, "vitisai-xint8")
    assert "If" not in operators_of(built)
    assert sum(op in ("MatMul", "Gemm") for op in operators_of(built)) == 2


def test_where_the_provider_has_no_control_flow_both_branches_are_computed(
    builder: Builder,
) -> None:
    built, variant = builder(_with_open_condition(), "vitisai-xint8")
    assert "If" not in operators_of(built)
    assert "Where" in operators_of(built)
    assert sum(op in ("MatMul", "Gemm") for op in operators_of(built)) == 3
    assert any("Both branches of choice are computed" in note for note in variant.notes)
    assert variant.accuracy.value > 0.9


def test_control_flow_that_stays_is_refused_by_name_where_the_provider_has_none(
    builder: Builder,
) -> None:
    model = _with_open_condition()
    choice, last = model.graph.node[-2:]
    then = next(entry.g for entry in choice.attribute if entry.name == "then_branch")
    then.node[0].output[0] = "sum"
    then.node.append(node("Transpose", ["sum"], ["t"], name="turn"))
    last.input[0] = "row"
    model.graph.node.insert(3, node("Reshape", ["i", "as_row"], ["row"], name="as_row"))
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
    assert "If" not in operators_of(built)
    assert sum(op in ("MatMul", "Gemm") for op in operators_of(built)) == 3, "the else branch"
    assert [value.name for value in built.graph.input] == ["x"]
    assert variant.accuracy.value > 0.9
    with np.load(tmp_path / "model-1.0.0" / "golden" / "golden.npz") as golden:
        assert not any("rate" in name for name in golden.files)


def test_nan_in_the_body_of_control_flow_is_named(builder: Builder) -> None:
    model = _with_open_condition()
    choice = next(node for node in model.graph.node if node.op_type == "If")
    bad = numpy_helper.from_array(np.array([np.nan], np.float32), "bad")
    choice.attribute[0].g.initializer.append(bad)
    with pytest.raises(BuildError) as caught:
        builder(model)
    assert "1 of 1 values of weight 'bad' are NaN" in caught.value.problem
