"""Dynamic quantization: products and LSTMs, wherever they stand."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgepack.packager.profiles.pass_settings import QuantizeDynamic
from edgepack.packager.progress import silent
from edgepack.packager.quantization.dynamic.candidate_maker import DynamicCandidateMaker
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import (
    constant,
    make_model,
    parsed_model,
    samples_for,
    weight,
)


def _maker(model: onnx.ModelProto, folder: Path, **settings: Any) -> DynamicCandidateMaker:
    return DynamicCandidateMaker(
        model,
        QuantizeDynamic(**settings),
        samples_for(model, 2),
        work_dir=folder,
        progress=silent,
    )


def _error(model: onnx.ModelProto, built: onnx.ModelProto, folder: Path) -> float:
    """Root-mean-square error as a share of the root-mean-square, over all outputs."""
    onnx.checker.check_model(built)
    feeds = samples_for(model, 1).read(0)
    wanted = ModelRunner(model, folder / "float.onnx").run(feeds)
    got = ModelRunner(built, folder / "dynamic.onnx").run(feeds)
    return largest_difference([wanted], [got])


def _products() -> onnx.ModelProto:
    return parsed_model(
        "(float[4,32] x) => (float[4,24] y, float[4,8] c) { [first] a = MatMul(x, w1) "
        "[beside] c = MatMul(x, w3) [last] y = Gemm<transB=1, alpha=0.5>(a, w2, b2) }",
        [
            weight("w1", 32, 50),
            weight("w2", 24, 50, seed=2),
            weight("b2", 24),
            weight("w3", 32, 8),
        ],
    )


@pytest.mark.parametrize(
    "settings",
    [{}, {"per_channel": False}, {"weights": "int8", "reduce_range": True}],
)
def test_products_are_computed_in_integers_near_to_float(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    model = _products()
    built = _maker(model, tmp_path, **settings).build(spec("dynamic"))
    kinds = Counter(node.op_type for node in built.model.graph.node)
    assert kinds["MatMulInteger"] == 3
    assert kinds["DynamicQuantizeLinear"] == 2, "one for each tensor, however many read it"
    kept = {t.name: t.data_type for t in built.model.graph.initializer}
    assert set(kept) & {"w1", "w2", "w3"} == set()
    assert _error(model, built.model, tmp_path) < 0.03


def _lstm(weights: dict[str, onnx.TensorProto]) -> onnx.NodeProto:
    return helper.make_node(
        "LSTM", ["x", *weights], ["sequence", "h", "c"], name="lstm", hidden_size=16
    )


def _lstm_weights() -> dict[str, onnx.TensorProto]:
    return {
        "w": weight("w", 1, 64, 8),
        "r": weight("r", 1, 64, 16),
        "b": weight("b", 1, 128),
    }


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize(
    "settings", [{"weights": "uint8"}, {"weights": "int8", "reduce_range": True}]
)
def test_lstms_are_computed_in_integers_near_to_float(
    settings: dict[str, Any], per_channel: bool, tmp_path: Path
) -> None:
    tensors = _lstm_weights()
    model = make_model(
        [_lstm(tensors)],
        {"x": [5, 1, 8]},
        {"sequence": [5, 1, 1, 16], "h": [1, 1, 16], "c": [1, 1, 16]},
        list(tensors.values()),
    )
    built = _maker(model, tmp_path, per_channel=per_channel, **settings).build(spec("dynamic"))
    assert [node.op_type for node in built.model.graph.node] == ["DynamicQuantizeLSTM"]
    assert _error(model, built.model, tmp_path) < 0.05


def _branches() -> onnx.ModelProto:
    """An If whose bodies hold products: weights outside, as initializer and in Constant nodes."""

    def body(label: str, *nodes: onnx.NodeProto, own: tuple[onnx.TensorProto, ...] = ()) -> Any:
        info = helper.make_tensor_value_info(f"{label}_y", TensorProto.FLOAT, [4, 16])
        return helper.make_graph(list(nodes), label, [], [info], list(own))

    node = helper.make_node
    return make_model(
        [
            node(
                "If",
                ["yes"],
                ["y"],
                name="if",
                then_branch=body(
                    "then",
                    node("Constant", [], ["inner"], value=weight("value", 32, 16)),
                    node("MatMul", ["x", "inner"], ["then_y"], name="same"),
                ),
                else_branch=body("else", node("MatMul", ["x", "outer"], ["else_y"], name="same")),
            )
        ],
        {"x": [4, 32]},
        {"y": [4, 16]},
        [constant("yes", True, np.bool_), weight("outer", 32, 16, seed=4)],
    )


def test_products_in_bodies_are_quantized_and_keep_apart(tmp_path: Path) -> None:
    model = _branches()
    maker = _maker(model, tmp_path)
    assert set(maker.names) == {"if/then_branch/same_1", "if/else_branch/same_0"}
    built = maker.build(spec("dynamic")).model
    branches = {entry.name: entry.g for entry in built.graph.node[0].attribute}
    for branch in branches.values():
        assert "MatMulInteger" in {node.op_type for node in branch.node}
        assert "Constant" not in {node.op_type for node in branch.node}
    assert [tensor.name for tensor in built.graph.initializer] == ["yes"]
    assert _error(model, built, tmp_path) < 0.03


def test_one_branch_can_stay_float(tmp_path: Path) -> None:
    model = _branches()
    built = _maker(model, tmp_path).build(spec("dynamic", ("if/then_branch/same_1",)))
    assert built.lowered == ("if/else_branch/same_0",)
    assert _error(model, built.model, tmp_path) == 0.0
