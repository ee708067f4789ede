"""Ranking nodes by what each costs alone: the costliest are worth the most runs."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.calibrated_model import CalibratedModel
from edgepack.packager.quantization.static.candidate_maker import rank_nodes
from edgepack.packager.tensors.sequence import Feeds, Samples
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import make_model, parsed_model, samples_for, weight


def _layers(*spreads: float) -> onnx.ModelProto:
    """Products in a row; the weights of each are as uneven as its spread says."""
    nodes, weights, value = [], [], "x"
    for number, spread in enumerate(spreads):
        output = "y" if number == len(spreads) - 1 else f"h{number}"
        nodes.append(helper.make_node("MatMul", [value, f"w{number}"], [output], name=f"n{number}"))
        tensor = weight(f"w{number}", 8, 8, seed=number)
        values = onnx.numpy_helper.to_array(tensor).copy()
        values[0, 0] = spread
        weights.append(onnx.numpy_helper.from_array(values, f"w{number}"))
        value = output
    return make_model(nodes, {"x": [1, 8]}, {"y": [1, 8]}, weights)


def test_the_costliest_node_comes_first_and_is_measured_on_the_most_samples(tmp_path: Path) -> None:
    model = _layers(0.3, 0.3, 200.0, 0.3)
    samples = samples_for(model, 12)
    settings = Quantize(ops="compute", activations="uint8", weights="int8")
    calibrated = CalibratedModel(model, settings, samples, work_dir=tmp_path, progress=silent)
    switchable = calibrated.make_switchable(spec("minmax"), tmp_path / "switchable.onnx")
    runs: Counter[str] = Counter()

    class _Counting:
        names = switchable.names

        def run(self, feeds: Feeds, quantized: np.ndarray) -> dict[str, np.ndarray]:
            runs.update(name for name, on in zip(switchable.names, quantized, strict=True) if on)
            return switchable.run(feeds, quantized)

    ranked = rank_nodes(_Counting(), samples, progress=silent)  # type: ignore[arg-type]

    first = ranked[0].name
    assert first in {"n2", "n3"}, "one has the uneven weights, one reads what they make"
    assert {cost.name for cost in ranked} == {"n0", "n1", "n2", "n3"}
    assert sorted(runs.values()) == [2, 2, 4, 8], "2 samples for all, 4 for half, 8 for a quarter"
    assert runs[first] == 8
    assert rank_nodes(switchable, samples, progress=silent) == ranked


def test_what_spoils_a_detectors_scores_comes_before_what_moves_its_boxes_a_little(
    tmp_path: Path,
) -> None:
    boxes: np.ndarray = onnx.numpy_helper.to_array(weight("wb", 8, 4)) * 2000.0
    scores = onnx.numpy_helper.to_array(weight("ws", 8, 2)).copy() * 0.02
    scores[0] = 1.0  # its input is nearly always 0, so the others' rounding shows
    faint = np.ones((1, 1, 8), dtype=np.float32)
    faint[0, 0, 0] = 1e-4
    model = parsed_model(
        "(float[1,16,8] x) => (float[1,16,6] y) { [dims_the_first] seen = Mul(x, faint) "
        "[box_head] boxes = MatMul(seen, wb) [score_head] scores = MatMul(seen, ws) "
        "[join] y = Concat<axis=2>(boxes, scores) }",
        {"wb": boxes, "ws": scores.astype(np.float32), "faint": faint},
    )
    samples = samples_for(model, 12)
    settings = Quantize(ops="compute", activations="uint8", weights="int8")
    calibrated = CalibratedModel(model, settings, samples, work_dir=tmp_path, progress=silent)
    ranked = rank_nodes(
        calibrated.make_switchable(spec("minmax"), tmp_path / "switchable.onnx"),
        samples,
        progress=silent,
    )
    assert [cost.name for cost in ranked] == ["score_head", "box_head"]
    assert ranked[0].noise > 3 * ranked[1].noise


def test_samples_on_which_a_detector_finds_nothing_do_not_rank_its_nodes(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[1,4,8] x) => (float[1,4,8] y) { [head] logits = MatMul(x, w) "
        "[score] y = Sigmoid(logits) }",
        [weight("w", 8, 8)],
    )
    loud = samples_for(model, 12)
    telling = {5, 9}

    def read(index: int) -> Feeds:
        scale = np.float32(1.0 if index in telling else 1e-3)
        return {"x": loud.read(index)["x"].astype(np.float32) * scale}

    samples = Samples(count=12, read=read, source="test")
    settings = Quantize(ops="all", activations="uint8", weights="int8")
    calibrated = CalibratedModel(model, settings, samples, work_dir=tmp_path, progress=silent)
    switchable = calibrated.make_switchable(spec("minmax"), tmp_path / "switchable.onnx")
    measured: list[float] = []

    class _Watching:
        names = switchable.names

        def run(self, feeds: Feeds, quantized: np.ndarray) -> dict[str, np.ndarray]:
            if quantized.any():
                measured.append(float(np.abs(feeds["x"]).max()))
            return switchable.run(feeds, quantized)

    rank_nodes(_Watching(), samples, progress=silent)  # type: ignore[arg-type]
    assert min(measured[0], measured[2]) > 0.1, (
        "each node is measured first where something is said"
    )
    assert max(measured[1], measured[3]) < 0.1, "and then on a sample as it stands"
