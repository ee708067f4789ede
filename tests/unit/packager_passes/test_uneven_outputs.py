"""A detector's scores count, although its boxes in the same output are a thousand times larger."""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from edgepack.packager.judging.accuracy import Reference
from edgepack.packager.judging.measure import ModelRunner, Outputs
from edgepack.packager.profile.pass_settings import Quantize
from edgepack.packager.profile.schema import AccuracyGate
from edgepack.packager.quantization.calibrated import CalibratedModel, Spared
from tests.unit.packager_passes.models import constant, make_model, samples_for, weight

_WHOLE_GRAPH = Quantize(ops="all", activations="uint8", weights="uint8")


def _outputs(count: int = 20) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {
            "output0": np.concatenate(
                [rng.uniform(0, 640, (1, 4, 50)), rng.uniform(0, 1, (1, 6, 50)) ** 4], axis=1
            ).astype(np.float32)
        }
        for _ in range(count)
    ]


def test_scores_that_are_lost_beside_boxes_are_a_loss() -> None:
    expected = _outputs()
    reference = Reference(expected, AccuracyGate())
    lost = [{"output0": value["output0"].copy()} for value in expected]
    for value in lost:
        value["output0"][:, 4:] = 0
    verdict = reference.judge(lost)
    assert not verdict.passed
    assert verdict.metric == "explained_variance (output0, channels 4…9)"
    assert verdict.value < 0.1
    assert verdict.distances[0].explained_variance > 0.999, "the whole output looks fine"


def test_channels_of_like_size_are_judged_together() -> None:
    rng = np.random.default_rng(0)
    sizes = np.geomspace(0.2, 5, 16).reshape(1, 16, 1)
    expected: list[Outputs] = [
        {"y": (rng.normal(0, 1, (1, 16, 8)) * sizes).astype(np.float32)} for _ in range(20)
    ]
    near: list[Outputs] = [
        {"y": value["y"].astype(np.float32) + np.float32(0.01)} for value in expected
    ]
    assert Reference(expected, AccuracyGate()).judge(near).metric == "explained_variance"


def _detector() -> onnx.ModelProto:
    """x float32 (1, 8, 10) to joined (1, 8, 10): 4 channels of boxes, 4 of scores."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["raw_boxes"], name="boxes"),
        helper.make_node("Mul", ["raw_boxes", "stride"], ["scaled"], name="scale"),
        helper.make_node("Conv", ["x", "w2"], ["raw_scores"], name="scores"),
        helper.make_node("Sigmoid", ["raw_scores"], ["score"], name="sigmoid"),
        helper.make_node("Concat", ["scaled", "score"], ["joined"], name="join", axis=1),
        helper.make_node("Transpose", ["joined"], ["y"], name="turn", perm=[0, 2, 1]),
    ]
    return make_model(
        nodes,
        {"x": [1, 8, 10]},
        {"y": [1, 10, 8]},
        [weight("w1", 4, 8, 1), weight("w2", 4, 8, 1), constant("stride", 200.0)],
    )


def test_a_join_of_boxes_and_scores_stays_float_in_8_bits(tmp_path: Path) -> None:
    model = _detector()
    samples = samples_for(model, 12)
    calibrated = CalibratedModel(
        model, _WHOLE_GRAPH, samples, work_dir=tmp_path / "calibration", progress=lambda *_: None
    )
    quantized, plan = calibrated.quantize("minmax", Spared(), model)
    assert set(plan.names) == {"boxes", "scale", "scores", "sigmoid"}
    expected = ModelRunner(model, tmp_path / "float.onnx").run_all(samples)
    got = ModelRunner(quantized, tmp_path / "quantized.onnx", optimize=False).run_all(samples)
    assert Reference(expected, AccuracyGate()).judge(got).passed


def test_a_join_that_16_bits_hold_is_quantized(tmp_path: Path) -> None:
    model = _detector()
    settings = Quantize(ops="all", activations="uint16", weights="uint8")
    calibrated = CalibratedModel(
        model,
        settings,
        samples_for(model, 12),
        work_dir=tmp_path / "calibration",
        progress=lambda *_: None,
    )
    _, plan = calibrated.quantize("minmax", Spared(), model)
    assert {"join", "turn"} <= set(plan.names)
