"""Inspection of a lowered model: the error of each tensor, and the coverage of each scale."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.agent.runtime.placement import LeftNode
from edgepack.packager.graph.model_files import save_model
from edgepack.packager.runtime import inspection
from edgepack.packager.runtime.inspection import (
    ActivationScale,
    Layer,
    describe_range,
    inspect,
    measure_layer,
)
from edgepack.packager.runtime.unassigned_nodes import UnassignedNode, explain_left
from edgepack.packager.tensors.observations import Observation
from edgepack.packager.tensors.sequence import Samples

WIDTH = 64


def _samples(count: int = 6) -> Samples:
    def read(index: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(index)
        return {"x": rng.normal(0, 1, (1, WIDTH)).astype(np.float32)}

    return Samples(count=count, read=read, source="made up")


def _model(*, scale: float | None) -> onnx.ModelProto:
    """Return MatMul, Relu, MatMul; with a scale, the Relu's output is quantized."""
    weights = np.random.default_rng(1).normal(0, 0.2, (WIDTH, WIDTH)).astype(np.float32)
    initializers = [numpy_helper.from_array(weights, "w")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="first")]
    if scale is None:
        nodes.append(helper.make_node("Relu", ["h"], ["r"], name="relu"))
    else:
        initializers += [
            numpy_helper.from_array(np.array(scale, np.float32), "s"),
            numpy_helper.from_array(np.array(0, np.uint8), "z"),
        ]
        nodes += [
            helper.make_node("Relu", ["h"], ["r/float"], name="relu"),
            helper.make_node("QuantizeLinear", ["r/float", "s", "z"], ["r/q"], name="q"),
            helper.make_node("DequantizeLinear", ["r/q", "s", "z"], ["r"], name="dq"),
        ]
    nodes.append(helper.make_node("MatMul", ["r", "w"], ["y"], name="second"))
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, WIDTH])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def inspected(tmp_path: Path) -> inspection.Inspection:
    """Return the model with a scale that covers only a part of the Relu's output."""
    return _inspect(tmp_path, 0.01)


def _inspect(folder: Path, scale: float) -> inspection.Inspection:
    save_model(_model(scale=scale), folder / "lowered.onnx")
    return inspect(
        _model(scale=None),
        folder / "lowered.onnx",
        _samples(),
        calibrated={"r": Observation(low=0.0, high=40.0)},
        work_dir=folder,
    )


def test_the_layer_that_is_quantized_has_the_error_and_those_before_have_none(
    inspected: inspection.Inspection,
) -> None:
    by_tensor = {layer.tensor: layer for layer in inspected.layers}
    assert list(by_tensor) == ["h", "r", "y"]
    assert inspected.sample_count == inspection.MOST_SAMPLES
    assert (by_tensor["h"].nrmse, by_tensor["h"].sqnr_db) == (1e-5, 100.0)
    assert by_tensor["r"].nrmse > 0.05
    assert by_tensor["r"].sqnr_db == pytest.approx(-20 * np.log10(by_tensor["r"].nrmse), abs=0.06)
    assert by_tensor["y"].nrmse > 0.01
    assert (by_tensor["r"].node, by_tensor["r"].op) == ("relu", "Relu"), "not the DequantizeLinear"
    assert [layer.tensor for layer in inspected.layers if layer.is_lowered] == ["y"]


def test_a_finer_scale_has_a_smaller_error(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("coarse", "fine")]
    errors = []
    for folder, scale in zip(folders, (0.5, 0.05), strict=True):
        folder.mkdir()
        errors.append(_inspect(folder, scale).layers[1].nrmse)
    assert 5 < errors[0] / errors[1] < 20, "rounding errors go with the scale"


def test_a_range_tells_what_was_seen_covered_and_clipped(
    inspected: inspection.Inspection,
) -> None:
    (entry,) = inspected.ranges
    assert (entry.tensor, entry.dtype, entry.zero_point) == ("r", "uint8", 0)
    assert (entry.scale, entry.covered_low, entry.covered_high) == (0.01, 0.0, 2.55)
    assert (entry.seen_low, entry.seen_high) == (0.0, 40.0), "what calibration saw"
    assert 0 < entry.clipped_share < 0.5
    assert entry.has_outliers, "40 is far beyond what 99.9 % of the values need"


def test_without_calibration_the_samples_tell_what_is_seen() -> None:
    scale = ActivationScale(tensor="t", dtype="int8", scale=0.1, zero_point=0)
    entry = describe_range(scale, None, [np.linspace(-1.0, 2.0, 1001)])
    assert (entry.covered_low, entry.covered_high) == (-12.8, 12.7)
    assert (entry.seen_low, entry.seen_high) == (-1.0, 2.0)
    assert entry.clipped_share == 0.0
    assert not entry.has_outliers


def test_nan_and_silence_have_an_error_that_json_can_hold() -> None:
    layer = Layer(tensor="t", node="n", op="Conv", is_lowered=True)
    found = measure_layer(layer, [np.ones(4)], [np.array([1.0, np.nan, 1.0, 1.0])])
    assert found is not None
    assert (found.nrmse, found.sqnr_db) == (100.0, -40.0)
    assert measure_layer(layer, [np.zeros(4)], [np.zeros(4)]) is None, "nothing to compare with"
    assert measure_layer(layer, [np.ones(4)], [np.ones(5)]) is None


def test_the_same_models_and_samples_give_the_same_numbers(tmp_path: Path) -> None:
    found = []
    for name in ("once", "again"):
        (tmp_path / name).mkdir()
        found.append(_inspect(tmp_path / name, 0.03))
    assert found[0] == found[1]


def test_what_costs_too_much_is_left_out_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "MOST_TENSORS", 2)
    found = _inspect(tmp_path, 0.01)
    assert [layer.tensor for layer in found.layers] == ["h", "y"]
    assert found.note == "2 of 3 tensors were looked at, evenly spread."
    monkeypatch.setattr(inspection, "MOST_WEIGHT_BYTES", 1000)
    found = _inspect(tmp_path, 0.01)
    assert (found.layers, found.ranges, found.sample_count) == ((), (), 0)
    assert found.note.startswith("Layers were not looked at: the weights take")


def test_the_provider_s_reason_is_found_by_the_node_s_name(tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    log.write_text(
        "2026 [V:onnxruntime:, ep.cc:1 LogNodeSupport] Validation FAILED for 2 nodes :\n"
        "\tOperator type: Q Node name: x/Q Node index: 0\n"
        "\tOperator type: Cast Node name: a cast Node index: 1\n"
        "\tREASON : Q nodes that consume a graph input stay.\n"
        "\n"
        "2026 [V:onnxruntime:, ep.cc:1 LogNodeSupport] Validation PASSED for 1 nodes :\n"
        "\tOperator type: Conv Node name: c Node index: 2\n"
        "2026 something else\n"
        "\tREASON : of nothing that was named\n"
    )
    left = [LeftNode("a cast", "Cast"), LeftNode("c", "Conv"), LeftNode("x/Q", "Q")]
    because = "Q nodes that consume a graph input stay."
    assert explain_left(left, log) == (
        UnassignedNode(name="a cast", op="Cast", reason=because),
        UnassignedNode(name="c", op="Conv"),
        UnassignedNode(name="x/Q", op="Q", reason=because),
    )
