"""Control flow that stays is explained: which input decides it, and how to fold it away."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepack.packager.graph.control_flow import (
    deciding_inputs,
    describe_node,
    note_what_stays,
    option_that_folds,
)
from edgepack.packager.tensors.sequence import Samples

_node = helper.make_node
_value = helper.make_tensor_value_info


def _graph(size: int = 1) -> onnx.GraphProto:
    branches = [
        helper.make_graph([_node(op, ["x"], [out])], op, [], [_value(out, 1, None)])
        for op, out in (("Relu", "a"), ("Neg", "b"))
    ]
    return helper.make_graph(
        [
            _node("ReduceMax", ["rate"], ["most"], name="most", keepdims=0),
            _node("Cast", ["most"], ["c"], name="cast", to=TensorProto.BOOL),
            _node("If", ["c"], ["y"], "choice", then_branch=branches[0], else_branch=branches[1]),
        ],
        "graph",
        [_value("x", 1, [1, 2]), _value("rate", TensorProto.INT64, [size])],
        [_value("y", 1, [1, 2])],
    )


def _samples(rates: Sequence[Sequence[int]]) -> Samples:
    return Samples(
        count=len(rates),
        read=lambda index: {"x": np.zeros((1, 2), np.float32), "rate": np.array(rates[index])},
        source="made",
    )


def test_a_node_of_control_flow_names_the_input_that_decides_it() -> None:
    graph = _graph()
    assert describe_node(graph, graph.node[2]) == (
        "choice (If), its condition depends on the input 'rate'"
    )
    assert describe_node(graph, graph.node[0]) == "most (ReduceMax)"
    assert deciding_inputs(graph, graph.node[0]) == ()


def test_the_option_has_the_value_that_all_samples_hold() -> None:
    graph = _graph()
    samples = _samples([[16000], [16000]])
    assert option_that_folds(graph, graph.node, samples) == "--value rate=16000"
    (note,) = note_what_stays(graph, samples)
    assert "choice (If), its condition depends on the input 'rate'" in note
    assert "the same in all 2 calibration samples. With --value rate=16000" in note


@pytest.mark.parametrize("rates", [[[16000], [8000]], [[7] * 9]], ids=["differs", "long"])
def test_an_input_that_differs_or_is_data_is_not_offered(rates: list[list[int]]) -> None:
    graph = _graph(len(rates[0]))
    assert option_that_folds(graph, graph.node, _samples(rates)) == ""
    assert note_what_stays(graph, _samples(rates)) == ()
