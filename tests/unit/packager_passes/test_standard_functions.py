"""Operators that an older operator set lacks are written out as the standard defines them."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.passes.change_opset import change_opset
from edgepack.packager.passes.operator_sets import UnchangeableError, check_types


def _model(
    op: str, shapes: list[list[int]], opset: int, **attributes: str | float
) -> onnx.ModelProto:
    names = [f"input_{place}" for place in range(len(shapes))]
    node = helper.make_node(op, names, ["result"], name="node")
    node.attribute.extend(helper.make_attribute(key, of) for key, of in attributes.items())
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in zip(names, shapes, strict=True)
        ],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, shapes[0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 10
    return model


def _run(model: onnx.ModelProto) -> np.ndarray:
    return _run_all(model)[0]


def _run_all(model: onnx.ModelProto) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {
        entry.name: rng.normal(0, 1, entry.shape).astype(np.float32)
        for entry in session.get_inputs()
    }
    return [np.asarray(output) for output in session.run(None, feeds)]


@pytest.mark.parametrize(
    ("op", "shapes", "opset", "target", "attributes"),
    [
        ("Gelu", [[2, 3]], 20, 17, {}),
        ("Gelu", [[2, 3]], 22, 17, {"approximate": "tanh"}),
        ("GroupNormalization", [[1, 4, 5], [4], [4]], 21, 17, {"num_groups": 2}),
        ("Mish", [[2, 3]], 22, 17, {}),
        ("RMSNormalization", [[2, 3], [3]], 23, 21, {}),
        ("RMSNormalization", [[2, 3], [3]], 23, 17, {}),
        ("RMSNormalization", [[2, 3, 4], [3, 4]], 24, 17, {"axis": 1, "epsilon": 0.1}),
        ("Swish", [[2, 3]], 24, 17, {}),
        ("Swish", [[2, 3]], 24, 17, {"alpha": 1.5}),
        ("Attention", [[1, 2, 3, 4]] * 3, 23, 21, {"is_causal": 1}),
        ("RotaryEmbedding", [[1, 2, 3, 4], [1, 3, 2], [1, 3, 2]], 23, 21, {}),
        ("RotaryEmbedding", [[1, 2, 3, 4], [1, 3, 2], [1, 3, 2]], 23, 17, {}),
        ("RotaryEmbedding", [[1, 2, 3, 4], [1, 3, 2], [1, 3, 2]], 24, 17, {"interleaved": 1}),
        ("RotaryEmbedding", [[1, 3, 8], [1, 3, 2], [1, 3, 2]], 23, 17, {"num_heads": 2}),
        (
            "RotaryEmbedding",
            [[1, 2, 3, 8], [1, 3, 2], [1, 3, 2]],
            23,
            17,
            {"rotary_embedding_dim": 4},
        ),
        ("Attention", [[1, 2, 3, 4]] * 3, 23, 17, {"is_causal": 1}),
    ],
)
def test_a_newer_operator_computes_the_same_in_an_older_set(
    op: str, shapes: list[list[int]], opset: int, target: int, attributes: dict[str, str | float]
) -> None:
    model = _model(op, shapes, opset, **attributes)
    older = onnx.ModelProto()
    older.CopyFrom(model)
    change_opset(older, target)
    onnx.checker.check_model(older)
    assert op not in {node.op_type for node in older.graph.node}
    assert np.allclose(_run(older), _run(model), atol=1e-6)


def test_axes_are_known_where_only_the_rank_is() -> None:
    model = _model("RMSNormalization", [[2, 3], [3]], 23)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    change_opset(model, 17)
    (mean,) = (node for node in model.graph.node if node.op_type == "ReduceMean")
    assert [list(entry.ints) for entry in mean.attribute if entry.name == "axes"] == [[1]]
    assert not {"Range", "Shape", "Size"} & {node.op_type for node in model.graph.node}


def test_no_part_is_split_off_that_holds_nothing() -> None:
    model = _model("RotaryEmbedding", [[1, 2, 3, 4], [1, 3, 2], [1, 3, 2]], 23)
    change_opset(model, 17)
    (halves,) = (node for node in model.graph.node if node.op_type == "Split")
    assert len(halves.output) == 2, "the halves that turn, and no rest"


def test_a_second_output_is_written_out_too() -> None:
    model = _model("Attention", [[1, 2, 3, 4]] * 3, 23)
    model.graph.node[0].output.extend(["", "", "scores"])
    model.graph.output.append(helper.make_tensor_value_info("scores", 1, [1, 2, 3, 3]))
    older = onnx.ModelProto()
    older.CopyFrom(model)
    change_opset(older, 21)
    for before, after in zip(_run_all(model), _run_all(older), strict=True):
        assert np.allclose(before, after, atol=1e-6)


def test_nothing_is_computed_that_changes_nothing() -> None:
    model = _model("RMSNormalization", [[2, 3], [3]], 23)
    change_opset(model, 17)
    assert not {"Cast", "CastLike", "Identity"} & {node.op_type for node in model.graph.node}


def test_names_stay_apart_where_an_operator_occurs_twice() -> None:
    model = _model("Gelu", [[2, 3]], 20)
    again = helper.make_node("Gelu", ["result"], ["twice"], name="again")
    model.graph.node.append(again)
    model.graph.output[0].name = "twice"
    older = onnx.ModelProto()
    older.CopyFrom(model)
    change_opset(older, 17)
    assert np.allclose(_run(older), _run(model), atol=1e-6)


def test_an_operator_without_a_definition_is_refused_by_name() -> None:
    model = _model("TensorScatter", [[2, 3, 4], [2, 1, 4]], 24)
    with pytest.raises(UnchangeableError, match=r"opset 21 has no TensorScatter \(node 'node'\)"):
        change_opset(model, 21)


def test_an_operator_whose_definition_has_control_flow_is_refused_by_name() -> None:
    model = _model("AffineGrid", [[1, 2, 3]], 20)
    size = numpy_helper.from_array(np.array([1, 1, 4, 4]), "size")
    model.graph.node[0].input.append("size")
    model.graph.initializer.append(size)
    with pytest.raises(UnchangeableError, match=r"opset 17 has no AffineGrid \(node 'node'\)"):
        change_opset(model, 17)


def test_weights_of_a_type_that_an_older_set_lacks_are_refused_by_name() -> None:
    weight = helper.make_tensor("weight", TensorProto.INT4, [2, 2], [1, 2, 3, 4])
    scale = numpy_helper.from_array(np.array(0.5, np.float32), "scale")
    node = helper.make_node("DequantizeLinear", ["weight", "scale"], ["result"], name="unpack")
    output = helper.make_tensor_value_info("result", TensorProto.FLOAT, [2, 2])
    model = helper.make_model(
        helper.make_graph([node], "graph", [], [output], [weight, scale]),
        opset_imports=[helper.make_opsetid("", 21)],
    )
    check_types(model, 21)
    with pytest.raises(
        UnchangeableError, match=r"DequantizeLinear takes no int4 in opset 17 \(node 'unpack'\)"
    ) as caught:
        check_types(model, 17)
    assert caught.value.remedy == "give the float model that it was made from"
