"""A whole build of a detector, and the text detector that the demo takes."""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

from edgepack.bundle.cli import inspect
from edgepack.bundle.golden import read_golden
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.errors import BuildError
from edgepack.packager import build
from edgepack.packager.source.model import load_source
from edgepack.packager.tasks.detections import with_detection_head
from edgepack.tasks.detections.decoding import find_boxes
from edgepack.tasks.detections.layouts import DetectionHead
from tests.graphs import graph_model

_SIDE = 64
_HEAD = DetectionHead(layout="text-map", outputs=("map",), order="xyxy", activation="none")


def _bright_things() -> onnx.ModelProto:
    """Return a map of bright places: means of 4 x 4 pixels, and a sigmoid, brought to size."""
    weights = {
        "mean": np.full((4, 1, 4, 4), 1 / 16, np.float32),
        "twice": np.stack(
            [np.stack([np.full((2, 2), i == j) for j in range(4)]) for i in range(4)]
        ),
        "once": np.full((4, 1, 2, 2), 3.0, np.float32),
        "bias": np.array([-6.0], np.float32),
    }
    return graph_model(
        f"(float[1,1,{_SIDE},{_SIDE}] picture) => (float[1,1,{_SIDE},{_SIDE}] map) {{ "
        "a = Conv<strides=[4,4]>(picture, mean) b = ConvTranspose<strides=[2,2]>(a, twice) "
        "c = Relu(b) d = ConvTranspose<strides=[2,2]>(c, once, bias) map = Sigmoid(d) }",
        [numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()],
    )


def _pictures(count: int) -> list[dict[str, np.ndarray]]:
    """Return some bright squares in each picture but every fourth."""
    pictures = []
    for number in range(count):
        rng = np.random.default_rng(number)
        picture = rng.uniform(0, 0.05, (1, 1, _SIDE, _SIDE)).astype(np.float32)
        for place in rng.permutation(9)[: 3 if number % 4 else 0]:
            top, left = 20 * (place // 3) + 4, 20 * (place % 3) + 4
            picture[0, 0, top : top + 12, left : left + 12] += rng.uniform(0.5, 0.95)
        pictures.append({"picture": picture})
    return pictures


def test_a_detector_is_built_judged_and_shown_by_its_boxes(tmp_path: Path) -> None:
    onnx.save(_bright_things(), tmp_path / "bright.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    result = build(
        tmp_path / "bright.onnx",
        profiles=["cpu"],
        calibration=_pictures(60),
        key=tmp_path / "release.key",
        output=tmp_path / "bright-1.0.0",
    )
    accuracy = result.variants["cpu"].accuracy
    assert accuracy.metric == "detection_f1"
    assert accuracy.value >= accuracy.budget
    assert accuracy.details["box_threshold"] == 0.5
    notes = " ".join((*result.report.notes, *result.variants["cpu"].notes))
    assert "A detector: 'map' tells a map of probabilities" in notes
    assert "and nothing in 15 of 60 samples, which say nothing of boxes" in notes
    assert "of the float model's boxes, " in notes
    golden = read_golden(result.output / "golden" / "golden.npz")
    assert all(len(find_boxes(_HEAD, dict(outputs))) for outputs in golden.outputs)
    shown = CliRunner().invoke(inspect, [str(result.output)])
    assert "F1 of boxes " in shown.output


def _suppressed_in_the_graph() -> onnx.ModelProto:
    """Return boxes, scores and classes of bright squares, after a suppression in the graph."""
    square = np.zeros((1, 1, 20, 20))
    square[..., 4:16, 4:16] = 12.0 / 144.0
    steps = np.arange(3) * 20.0 + 4.0
    left, top = np.tile(steps, 3), np.repeat(steps, 3)
    weights = {
        "square": square,
        "bias": np.array([-4.0]),
        "corners": np.stack([left, top, left + 12.0, top + 12.0], axis=1)[None],
        "iou": np.array([0.5]),
        "least": np.array([0.2]),
    }
    whole = {"most": [10], "zero": [0], "one": [1], "two": [2], "three": [3], "row": [1, 1, 9]}
    whole["column"] = [1, 9, 1]
    weights |= {name: np.array(value) for name, value in whole.items()}
    kept = [
        numpy_helper.from_array(v.astype(np.int64 if name in whole else np.float32), name)
        for name, v in weights.items()
    ]
    return graph_model(
        f"(float[1,1,{_SIDE},{_SIDE}] picture) => (float[n,4] boxes, float[n] scores, "
        "int64[n] labels) { a = Conv<strides=[20,20]>(picture, square, bias) "
        "f = Sigmoid(a) s = Reshape(f, row) u = Reshape(f, column) b = Add(corners, u) "
        "c = NonMaxSuppression(b, s, most, iou, least) k = Slice(c, one, two, one) "
        "labels = Squeeze(k, one) p = Slice(c, two, three, one) i = Squeeze(p, one) "
        "r = Squeeze(b, zero) boxes = Gather(r, i) scores = GatherND(s, c) }",
        kept,
    )


def test_boxes_of_a_suppression_in_the_graph_are_judged_as_boxes(tmp_path: Path) -> None:
    onnx.save(_suppressed_in_the_graph(), tmp_path / "squares.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    result = build(
        tmp_path / "squares.onnx",
        profiles=["vitisai-xint8"],
        calibration=_pictures(60),
        key=tmp_path / "release.key",
        output=tmp_path / "squares-1.0.0",
    )
    accuracy = result.variants["vitisai-xint8"].accuracy
    assert accuracy.metric == "detection_f1"
    assert accuracy.details["box_places"] > 0.9
    notes = " ".join((*result.report.notes, *result.variants["vitisai-xint8"].notes))
    assert "A detector: 'boxes', 'scores', 'labels'" in notes
    assert "judged by the floats" not in notes
    (agreement,) = result.variants["vitisai-xint8"].agreements
    assert agreement.part.task == "detections", "a device compares boxes, too"
    assert not result.variants["vitisai-xint8"].tolerances, "boxes come in any order"


def test_a_detector_that_finds_nothing_in_any_sample_is_judged_by_its_values(
    tmp_path: Path,
) -> None:
    onnx.save(_bright_things(), tmp_path / "bright.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    result = build(
        tmp_path / "bright.onnx",
        profiles=["fp32"],
        calibration=[picture for n, picture in enumerate(_pictures(40)) if n % 4 == 0],
        key=tmp_path / "release.key",
        output=tmp_path / "bright-1.0.0",
    )
    assert result.variants["fp32"].accuracy.metric == "explained_variance"
    assert any("finds nothing at threshold .5 in any" in note for note in result.report.notes)


def test_a_text_detector_that_people_use_is_told_by_its_graph(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        pytest.skip("rapidocr_onnxruntime is not installed")
    path = Path(spec.origin).parent / "models" / "ch_PP-OCRv4_det_infer.onnx"
    source = load_source(path, {"x": (1, 3, 320, 320)})
    (part,) = with_detection_head(source, {}).description.parts
    assert part == DetectionHead(layout="text-map", outputs=("sigmoid_0.tmp_0",)).part


def test_a_detector_by_its_own_metric_needs_no_layout(tmp_path: Path) -> None:
    """A user with a metric is not asked for the layout of boxes, and boxes do not decide."""
    onnx.save(_bright_things(), tmp_path / "bright.onnx")
    write_key_pair(generate_key(), tmp_path / "release")
    with pytest.raises(BuildError) as refused:
        build(
            tmp_path / "bright.onnx",
            profiles=["fp32"],
            calibration=_pictures(12),
            key=tmp_path / "release.key",
            output=tmp_path / "bright-1.0.0",
            metric=lambda run: -1.0,
        )
    assert "gives the float model -1" in refused.value.problem
