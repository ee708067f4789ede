"""A detector's scores count, although its boxes in the same output are a thousand times larger."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.quantization.static.calibrated_model import CalibratedModel
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.packager.tasks.noise import NoiseMeter
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.values.measure import explain
from edgepack.tasks.values.parts import Part
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import constant, parsed_model, samples_for, weight

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


def _keep_whole(name: str, expected: Sequence[Outputs], got: Sequence[Outputs]) -> float:
    """Return the variance that an output keeps as a whole."""
    return explain([value[name] for value in expected], [value[name] for value in got]).value


@pytest.mark.parametrize(
    ("channels", "words"),
    [
        ((7,), "y, channel 7"),
        ((0, 1, 2, 3), "y, channels 0…3"),
        ((0, 3), "y, channels 0 and 3"),
        ((1, 2, 4, 6, 7, 8), "y, channels 1…2, 4 and 6…8"),
        ((0, 2, 4, 6, 8, 10), "y, channels 0, 2, 4, 6 and others, 6 in all"),
    ],
)
def test_a_group_is_called_by_its_own_channels(channels: tuple[int, ...], words: str) -> None:
    assert Part(output="y", axis=1, channels=channels).words == words


def test_scores_that_are_lost_beside_boxes_are_a_loss() -> None:
    expected = _outputs()
    reference = Reference(expected, {})
    lost = [{"output0": value["output0"].copy()} for value in expected]
    for value in lost:
        value["output0"][:, 4:] = 0
    verdict = reference.judge(lost)
    assert not verdict.passed
    assert verdict.metric == "explained_variance (output0, channels 4…9)"
    assert verdict.value < 0.1
    assert _keep_whole("output0", expected, lost) > 0.999, "the whole output looks fine"


def test_channels_of_like_size_are_judged_together() -> None:
    rng = np.random.default_rng(0)
    sizes = np.geomspace(0.2, 5, 16).reshape(1, 16, 1)
    expected: list[Outputs] = [
        {"y": (rng.normal(0, 1, (1, 16, 8)) * sizes).astype(np.float32)} for _ in range(20)
    ]
    near: list[Outputs] = [
        {"y": value["y"].astype(np.float32) + np.float32(0.01)} for value in expected
    ]
    assert "channel" not in Reference(expected, {}).judge(near).metric


def _detector() -> onnx.ModelProto:
    """x float32 (1, 8, 10) to joined (1, 8, 10): 4 channels of boxes, 4 of scores."""
    return parsed_model(
        "(float[1,8,10] x) => (float[1,10,8] y) { [boxes] raw_boxes = Conv(x, w1) "
        "[scale] scaled = Mul(raw_boxes, stride) [scores] raw_scores = Conv(x, w2) "
        "[sigmoid] score = Sigmoid(raw_scores) [join] joined = Concat<axis=1>(scaled, score) "
        "[turn] y = Transpose<perm=[0,2,1]>(joined) }",
        [weight("w1", 4, 8, 1), weight("w2", 4, 8, 1), constant("stride", 200.0)],
    )


def test_a_join_of_boxes_and_scores_stays_float_in_8_bits(tmp_path: Path) -> None:
    model = _detector()
    samples = samples_for(model, 12)
    calibrated = CalibratedModel(
        model, _WHOLE_GRAPH, samples, work_dir=tmp_path / "calibration", progress=lambda *_: None
    )
    quantized, plan = calibrated.quantize(spec("minmax"), model)
    assert set(plan.names) == {"boxes", "scale", "scores", "sigmoid"}
    expected = ModelRunner(model, tmp_path / "float.onnx").run_all(samples)
    got = ModelRunner(quantized, tmp_path / "quantized.onnx", optimize=False).run_all(samples)
    assert Reference(expected, {}).judge(got).passed


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
    _, plan = calibrated.quantize(spec("minmax"), model)
    assert {"join", "turn"} <= set(plan.names)


def _anchors(count: int = 20) -> list[Outputs]:
    """Offsets from a grid and two scores of 200 places, a few of which hold something."""
    rng = np.random.default_rng(1)
    outputs: list[Outputs] = []
    for _ in range(count):
        offsets = rng.normal(0, 0.05, (1, 200, 4))
        scores = rng.uniform(0, 0.01, (1, 200, 2))
        places = rng.choice(200, 6, replace=False)
        offsets[0, places] = rng.normal(0, 1.5, (6, 4))
        scores[0, places] = rng.uniform(0.4, 0.95, (6, 2))
        outputs.append({"y": np.concatenate([offsets, scores], axis=2).astype(np.float32)})
    return outputs


def _scaled(outputs: list[Outputs], channels: slice, factor: float) -> list[Outputs]:
    scaled: list[Outputs] = []
    for value in outputs:
        changed = value["y"].astype(np.float32)
        changed[..., channels] *= np.float32(factor)
        scaled.append({"y": changed})
    return scaled


def test_scores_beside_offsets_of_like_size_are_judged_by_themselves() -> None:
    expected = _anchors()
    reference = Reference(expected, {})
    verdict = reference.judge(_scaled(expected, slice(4, 6), 0.8))
    assert verdict.metric == "explained_variance (y, channels 4…5)"
    assert not verdict.passed
    assert verdict.value < 0.97


def test_an_output_with_fewer_channels_than_expected_is_wrong_and_no_crash() -> None:
    expected = _anchors()
    fewer: list[Outputs] = [{"y": value["y"][..., :3]} for value in expected]
    verdict = Reference(expected, {}).judge(fewer)
    assert not verdict.passed
    assert verdict.value < 0.1


def test_a_box_counts_where_something_was_found_and_nowhere_else() -> None:
    expected = _anchors()
    reference = Reference(expected, {})
    rng = np.random.default_rng(2)
    unread: list[Outputs] = []
    read: list[Outputs] = []
    for value in expected:
        is_read = value["y"][..., 4:].max(axis=-1) >= 0.05
        error = rng.normal(0, 0.3, (1, 200, 4)).astype(np.float32)
        for where, candidates in ((~is_read, unread), (is_read, read)):
            moved = value["y"].astype(np.float32)
            moved[..., :4] += error * where[..., None]
            candidates.append({"y": moved})
    passed = reference.judge(unread)
    assert passed.passed, "what is written where nothing was found nobody reads"
    assert passed.value == 1.0
    assert _keep_whole("y", expected, unread) < 0.9, "of the whole output much is lost"
    refused = reference.judge(read)
    assert refused.metric == "explained_variance (y, channels 0…3)"
    assert not refused.passed


def _apart(outputs: list[Outputs]) -> list[Outputs]:
    """The same with boxes and scores as two outputs."""
    return [{"boxes": value["y"][..., :4], "scores": value["y"][..., 4:]} for value in outputs]


def _moved(outputs: list[Outputs], where: str) -> list[Outputs]:
    """Boxes moved where something is found, or where nothing is."""
    rng = np.random.default_rng(2)
    moved: list[Outputs] = []
    for value in outputs:
        is_read = value["scores"].max(axis=-1, keepdims=True) >= 0.05
        error = rng.normal(0, 0.3, value["boxes"].shape).astype(np.float32)
        chosen = is_read if where == "found" else ~is_read
        moved.append({**value, "boxes": value["boxes"] + error * chosen})
    return moved


def _as_for_suppression(outputs: list[Outputs]) -> list[Outputs]:
    """Scores with their classes before the places, as NonMaxSuppression takes them."""
    return [{**value, "scores": value["scores"].transpose(0, 2, 1)} for value in outputs]


@pytest.mark.parametrize("lay_out", [list, _as_for_suppression])
def test_boxes_beside_an_output_of_scores_count_where_that_finds_something(
    lay_out: Callable[[list[Outputs]], list[Outputs]],
) -> None:
    outputs = _apart(_anchors())
    unread, read = (lay_out(_moved(outputs, where)) for where in ("nothing", "found"))
    reference = Reference(lay_out(outputs), {})
    passed = reference.judge(unread)
    assert passed.passed, "what is written where nothing was found nobody reads"
    assert _keep_whole("boxes", outputs, unread) < 0.9, "of the whole output much is lost"
    refused = reference.judge(read)
    assert refused.metric == "explained_variance (boxes, where scores finds something)"
    assert not refused.passed
    assert NoiseMeter(lay_out(outputs)).mean_noise(unread) == 0.0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda value: {**value, "scores": value["scores"][:, :150]}, "other places"),
        (lambda value: {**value, "scores": np.maximum(value["scores"], 0.06)}, "found everywhere"),
        (lambda value: {**value, "scores": value["scores"] * 0.1}, "nothing is ever found"),
        (lambda value: {**value, "scores": 3.0 * value["scores"]}, "no scores"),
        (lambda value: {**value, "others": value["scores"] * 0.9}, "two outputs of scores"),
        (lambda value: {**value, "boxes": value["boxes"][..., :3]}, "three numbers a place"),
    ],
)
def test_values_beside_what_may_be_no_scores_of_theirs_count_everywhere(
    change: Callable[[Outputs], Outputs], why: str
) -> None:
    expected = [change(value) for value in _apart(_anchors())]
    smaller: list[Outputs] = [
        {**value, "boxes": value["boxes"].astype(np.float32) * np.float32(0.8)}
        for value in expected
    ]
    verdict = Reference(expected, {}).judge(smaller)
    assert verdict.metric == "explained_variance", why
    assert verdict.output == "boxes"


def test_what_is_found_with_a_quarter_of_certainty_is_found() -> None:
    rng = np.random.default_rng(2)
    expected = _scaled(_anchors(), slice(4, 6), 0.25 / 0.95)
    noisy: list[Outputs] = []
    for value in expected:
        is_read = value["y"][..., 4:].max(axis=-1, keepdims=True) >= 0.05
        moved = value["y"].astype(np.float32)
        moved[..., :4] += rng.normal(0, 0.3, (1, 200, 4)) * ~is_read
        noisy.append({"y": moved})
    assert Reference(expected, {}).judge(noisy).value == 1.0
    apart = _apart(noisy)
    assert Reference(_apart(expected), {}).judge(apart).passed
    assert _keep_whole("boxes", _apart(expected), apart) < 0.9, "of the whole output much is lost"


def test_the_noise_of_integers_is_the_share_of_them_that_is_wrong() -> None:
    rng = np.random.default_rng(0)
    expected: list[dict[str, np.ndarray]] = [
        {"points": rng.integers(0, 5, (1, 10))} for _ in range(4)
    ]
    got: list[dict[str, np.ndarray]] = [{"points": value["points"].copy()} for value in expected]
    meter = NoiseMeter(expected)
    assert meter.mean_noise(got) == 0.0
    got[0]["points"][0, :6] += 1
    assert meter.mean_noise(got) == pytest.approx(6 / 40)
    for value in got:
        value["points"][:] = 9
    assert meter.mean_noise(got) == 1.0


def test_beside_values_integers_make_no_noise_and_every_output_as_much_as_another() -> None:
    rng = np.random.default_rng(0)
    expected: list[dict[str, np.ndarray]] = [
        {"a": rng.normal(0, 1, (1, 1)), "b": rng.normal(0, 50, (1, 1)), "n": np.array([3])}
        for _ in range(12)
    ]
    got: list[dict[str, np.ndarray]] = [
        {**value, "a": value["a"] * 1.2, "n": value["n"] + 1} for value in expected
    ]
    assert NoiseMeter(expected).mean_noise(got) == pytest.approx(0.1)


def test_where_nothing_is_found_in_any_sample_every_box_counts() -> None:
    expected = _anchors()
    faint = _scaled(expected, slice(4, 6), 0.01)
    verdict = Reference(faint, {}).judge(_scaled(faint, slice(0, 4), 0.5))
    assert not verdict.passed
    assert verdict.metric == "explained_variance (y, channels 0…3)"


def test_small_positive_channels_beside_larger_positive_ones_are_no_scores() -> None:
    rng = np.random.default_rng(3)
    sizes = np.array([0.3, 0.6, 2.0, 5.0]).reshape(1, 4, 1)
    expected: list[Outputs] = [
        {"y": (rng.uniform(0, 1, (1, 4, 9)) * sizes).astype(np.float32)} for _ in range(20)
    ]
    near: list[Outputs] = [
        {"y": value["y"].astype(np.float32) + np.float32(0.02)} for value in expected
    ]
    assert "channel" not in Reference(expected, {}).judge(near).metric
