"""What moves integers of a quantized model gets pairs around it, and computes the same."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgepack.packager.passes.integer_moves import pair_integer_moves
from edgepack.packager.runtime.model_run import ModelRunner
from tests.unit.packager_passes.models import constant, make_model

_node = helper.make_node


def _quantize(name: str, source: str, scale: str = "s") -> onnx.NodeProto:
    return _node("QuantizeLinear", [source, scale, "z"], [name], name=f"q-{name}")


def _dequantize(name: str, source: str, scale: str = "s") -> onnx.NodeProto:
    return _node("DequantizeLinear", [source, scale, "z"], [name], name=f"dq-{name}")


def _model(
    nodes: Sequence[onnx.NodeProto], shape: Sequence[int], *more: onnx.TensorProto
) -> onnx.ModelProto:
    """Floats x (1, 2, 3) to floats y, one scale s and another, t, both with zero point z."""
    constants = [
        constant("s", 0.013),
        constant("t", 0.02),
        constant("z", -7, np.int8),
        constant("to", [1, 3, 2], np.int64),
        constant("first", [0], np.int64),
        constant("two", [2], np.int64),
        constant("last", [2], np.int64),
    ]
    return make_model(nodes, {"x": [1, 2, 3]}, {"y": list(shape)}, [*constants, *more])


_MOVED = {
    "one": ([_node("Reshape", ["q", "to"], ["m"], name="move")], (1, 3, 2)),
    "several in a row": (
        [
            _node("Reshape", ["q", "to"], ["r"], name="reshape"),
            _node("Transpose", ["r"], ["u"], name="turn", perm=[2, 0, 1]),
            _node("Slice", ["u", "first", "two", "last"], ["m"], name="slice"),
        ],
        (2, 1, 2),
    ),
    "two inputs": ([_node("Concat", ["q", "q"], ["m"], name="move", axis=1)], (1, 4, 3)),
    "the greatest": (
        [_node("MaxPool", ["q"], ["m"], name="move", kernel_shape=[2])],
        (1, 2, 2),
    ),
}


@pytest.mark.parametrize("what", _MOVED)
def test_integers_are_moved_between_pairs_and_stay_the_same_to_the_bit(
    what: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    moves, shape = _MOVED[what]
    model = _model([_quantize("q", "x"), *moves, _dequantize("y", "m")], shape)
    folder = tmp_path_factory.mktemp("moved")
    values = np.random.default_rng(0).normal(0, 1, (1, 2, 3)).astype(np.float32)
    before = ModelRunner(model, folder / "before.onnx").run({"x": values})["y"]
    note = pair_integer_moves(model.graph)
    assert note.startswith(f"{len(moves)} node")
    onnx.checker.check_model(model, full_check=True)
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    readers = {name: node.op_type for node in model.graph.node for name in node.input}
    for node in model.graph.node:
        if node.name in {move.name for move in moves}:
            reads = node.input if node.op_type == "Concat" else node.input[:1]
            assert {makers[name] for name in reads} == {"DequantizeLinear"}
            assert readers[node.output[0]] == "QuantizeLinear"
    after = ModelRunner(model, folder / "after.onnx").run({"x": values})["y"]
    np.testing.assert_array_equal(after, before)
    assert pair_integer_moves(model.graph) == "", "a second time there is nothing to do"


def test_the_scale_of_an_input_of_integers_is_that_of_its_reader(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    move = _node("Reshape", ["x", "to"], ["m"], name="move")
    model = _model([move, _dequantize("y", "m")], (1, 3, 2))
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT8
    del model.graph.value_info[:]  # made for floats
    values = np.arange(-3, 3, dtype=np.int8).reshape(1, 2, 3)
    path = tmp_path_factory.mktemp("input") / "model.onnx"
    before = ModelRunner(model, path).run({"x": values})["y"]
    assert pair_integer_moves(model.graph) != ""
    np.testing.assert_array_equal(ModelRunner(model, path).run({"x": values})["y"], before)


_TABLE = numpy_helper.from_array(np.zeros((5, 3), np.int8), "table")
_ROWS = constant("rows", [[0, 4]], np.int64)
_LEFT = {
    "floats between pairs": _model(
        [
            _quantize("q", "x"),
            _dequantize("f", "q"),
            _node("Reshape", ["f", "to"], ["r"], name="move"),
            _quantize("p", "r"),
            _dequantize("y", "p"),
        ],
        (1, 3, 2),
    ),
    "unlike scales": _model(
        [
            _quantize("q", "x"),
            _quantize("p", "x", "t"),
            _node("Concat", ["q", "p"], ["m"], name="move", axis=1),
            _dequantize("y", "m"),
        ],
        (1, 4, 3),
    ),
    "another scale behind": _model(
        [
            _quantize("q", "x"),
            _node("Reshape", ["q", "to"], ["m"], name="move"),
            _dequantize("y", "m", "t"),
        ],
        (1, 3, 2),
    ),
    "a table of integers": _model(
        [_node("Gather", ["table", "rows"], ["m"], name="look"), _dequantize("y", "m")],
        (1, 2, 3),
        _TABLE,
        _ROWS,
    ),
    "the places of the greatest": _model(
        [
            _quantize("q", "x"),
            _node("MaxPool", ["q"], ["m", "places"], name="pool", kernel_shape=[2]),
            _dequantize("y", "m"),
        ],
        (1, 2, 2),
    ),
    "a reader without a zero point, which may be of any type": _model(
        [
            _node("Cast", ["x"], ["c"], name="cast", to=onnx.TensorProto.INT8),
            _node("Reshape", ["c", "to"], ["m"], name="move"),
            _node("DequantizeLinear", ["m", "s"], ["y"], name="dq"),
        ],
        (1, 3, 2),
    ),
    "what computes": _model(
        [_quantize("q", "x"), _node("Neg", ["q"], ["n"], name="neg"), _dequantize("y", "n")],
        (1, 2, 3),
    ),
}


@pytest.mark.parametrize("what", _LEFT)
def test_what_is_right_or_would_change_is_left(what: str) -> None:
    model = _LEFT[what]
    before = model.SerializeToString()
    assert pair_integer_moves(model.graph) == ""
    assert model.SerializeToString() == before
