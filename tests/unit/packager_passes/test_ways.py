"""Ways to quantize: their words, their order, and what they do to a real model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.bias_correction import correct_biases
from edgepack.packager.quantization.static.candidate import Quantizer
from edgepack.packager.quantization.static.quantization_method import (
    QuantizationMethod,
    list_methods,
    parse_method,
)
from edgepack.packager.runtime.model_run import ModelRunner, Outputs
from tests.unit.packager_passes.models import attention, cnn, make_model, samples_for, weight


def _settings(**changes: object) -> Quantize:
    plain = {"ops": "compute", "activations": "uint8", "weights": "int8"}
    return Quantize(**(plain | changes))  # type: ignore[arg-type]


def _quantizer(model: onnx.ModelProto, settings: Quantize, folder: Path) -> Quantizer:
    return Quantizer(model, settings, samples_for(model, 8), work_dir=folder, progress=silent)


@pytest.mark.parametrize(
    "words",
    [
        "minmax",
        "percentile-99.99",
        "minmse, weights rounded by GPTQ",
        "smooth + mse",
        "cross-layer + mse, bias corrected",
    ],
)
def test_the_words_of_a_way_are_read_back(words: str) -> None:
    assert parse_method(words).words == words


def test_plain_ranges_come_first_and_only_the_first_two_are_combined() -> None:
    settings = _settings(
        ranges=("mse", "minmax", "entropy"), prepare=("cross-layer",), bias_correction="try"
    )
    assert [way.words for way in list_methods(settings, ("cross-layer",))] == [
        "mse",
        "minmax",
        "entropy",
        "cross-layer + mse",
        "cross-layer + minmax",
        "mse, bias corrected",
        "minmax, bias corrected",
        "cross-layer + mse, bias corrected",
        "cross-layer + minmax, bias corrected",
    ]
    assert list_methods(_settings(), ()) == (QuantizationMethod(ranges="minmax"),)


def test_gptq_is_tried_after_all_ranges_and_with_the_first_alone() -> None:
    settings = _settings(ranges=("mse", "minmax"), weight_rounding="gptq", bias_correction="try")
    ways = list_methods(settings, ())
    assert [way.words for way in ways] == [
        "mse",
        "minmax",
        "mse, weights rounded by GPTQ",
        "mse, bias corrected",
        "minmax, bias corrected",
    ]
    assert [way.is_plain for way in ways] == [True, True, True, False, False]


def test_a_preparation_is_offered_only_where_the_model_gives_occasion(tmp_path: Path) -> None:
    settings = _settings(prepare=("smooth", "cross-layer"))
    quantizer = _quantizer(attention(), settings, tmp_path)
    assert quantizer.methods == ("minmax",)
    assert quantizer.costly_methods == ("smooth + minmax",)


def _outlier_model() -> onnx.ModelProto:
    """A normalization with one channel a hundred times the others, then a product."""
    gain = np.ones(16, dtype=np.float32)
    gain[5] = 100.0
    return make_model(
        [
            helper.make_node("LayerNormalization", ["x", "gain"], ["n"], name="norm", axis=-1),
            helper.make_node("MatMul", ["n", "w"], ["y"], name="product"),
        ],
        {"x": [4, 16]},
        {"y": [4, 8]},
        [numpy_helper.from_array(gain, "gain"), weight("w", 16, 8)],
    )


def _error(before: onnx.ModelProto, after: onnx.ModelProto, folder: Path) -> float:
    samples = samples_for(before, 6, seed=3)
    right = ModelRunner(before, folder / "right.onnx").run_all(samples)
    wrong = ModelRunner(after, folder / "wrong.onnx", optimize=False).run_all(samples)
    errors = _errors(right, wrong)
    return float(np.sqrt(np.mean(errors**2)))


def _errors(right: Sequence[Outputs], wrong: Sequence[Outputs]) -> npt.NDArray[np.float64]:
    return np.stack(
        [
            np.asarray(b["y"], dtype=np.float64) - np.asarray(a["y"], dtype=np.float64)
            for a, b in zip(right, wrong, strict=True)
        ]
    )


def test_smoothing_makes_outliers_cost_less_and_says_what_it_did(tmp_path: Path) -> None:
    model = _outlier_model()
    quantizer = _quantizer(model, _settings(prepare=("smooth",)), tmp_path)
    plain = quantizer.build("minmax")
    smoothed = quantizer.build("smooth + minmax")
    assert smoothed.lowered == plain.lowered == ("product",)
    assert plain.notes == ()
    assert smoothed.notes[0].startswith("SmoothQuant (alpha 0.5): 1 of 1 inputs")
    assert _error(model, smoothed.model, tmp_path) < 0.5 * _error(model, plain.model, tmp_path)


def _cascade() -> onnx.ModelProto:
    """Two convolutions whose channels differ a thousandfold, for scales per tensor."""
    uneven = np.geomspace(1e-3, 1.0, 8).reshape(8, 1, 1, 1)
    w1 = (numpy_helper.to_array(weight("w1", 8, 3, 3, 3)) * uneven).astype(np.float32)
    w2 = (numpy_helper.to_array(weight("w2", 4, 8, 3, 3)) / uneven[:, 0][None]).astype(np.float32)
    return make_model(
        [
            helper.make_node("Conv", ["x", "w1"], ["h"], name="first"),
            helper.make_node("Relu", ["h"], ["r"], name="relu"),
            helper.make_node("Conv", ["r", "w2"], ["y"], name="second"),
        ],
        {"x": [1, 3, 8, 8]},
        {"y": [1, 4, 4, 4]},
        [numpy_helper.from_array(w1, "w1"), numpy_helper.from_array(w2, "w2")],
    )


def test_equalized_layers_lose_less_with_one_scale_a_tensor(tmp_path: Path) -> None:
    model = _cascade()
    quantizer = _quantizer(model, _settings(prepare=("cross-layer",)), tmp_path)
    plain = _error(model, quantizer.build("minmax").model, tmp_path)
    equalized = _error(model, quantizer.build("cross-layer + minmax").model, tmp_path)
    assert equalized < 0.5 * plain


def test_corrected_biases_take_the_mean_error_away(tmp_path: Path) -> None:
    model = _cascade()
    settings = _settings(bias_correction="try")
    quantizer = _quantizer(model, settings, tmp_path)
    samples = samples_for(model, 8)
    right = ModelRunner(model, tmp_path / "right.onnx").run_all(samples)
    shifts = []
    for method in ("minmax", "minmax, bias corrected"):
        built = quantizer.build(method)
        got = ModelRunner(built.model, tmp_path / "got.onnx", optimize=False).run_all(samples)
        shifts.append(float(np.abs(_errors(right, got).mean(axis=(0, 1, 3, 4))).max()))
    assert shifts[1] < 0.3 * shifts[0]
    assert built.notes[0].startswith("Bias correction: ")


def _deep_chain(length: int) -> onnx.ModelProto:
    """Convolutions in a row that hand on what shifts the one before."""
    nodes, weights, tensor = [], [], "x"
    for number in range(length):
        kernel = numpy_helper.to_array(weight(f"w{number}", 8, 8, 1, 1)) + 0.3
        kernel /= np.abs(kernel).sum(axis=1, keepdims=True)
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{number}"))
        after = "y" if number == length - 1 else f"h{number}"
        conv = [tensor, f"w{number}"]
        nodes.append(helper.make_node("Conv", conv, [f"{after}/sum"], name=f"n{number}"))
        nodes.append(helper.make_node("Relu", [f"{after}/sum"], [after], name=f"r{number}"))
        tensor = after
    return make_model(nodes, {"x": [1, 8, 4, 4]}, {"y": [1, 8, 4, 4]}, weights)


def test_what_earlier_layers_passed_on_is_not_corrected_once_more_in_each_later_one(
    tmp_path: Path,
) -> None:
    model = _deep_chain(24)
    quantizer = _quantizer(model, _settings(bias_correction="try"), tmp_path)
    plain = _error(model, quantizer.build("minmax").model, tmp_path)
    corrected = quantizer.build("minmax, bias corrected")
    assert _error(model, corrected.model, tmp_path) < plain
    assert corrected.notes[0].startswith("Bias correction: ")


def test_a_model_that_quantization_does_not_shift_keeps_its_biases(tmp_path: Path) -> None:
    model = cnn()
    corrected, note = correct_biases(
        model,
        lambda same: same,
        [n.name for n in model.graph.node],
        samples_for(model, 6),
        tmp_path,
    )
    assert corrected == model
    assert note.startswith("Bias correction: 0 channels of 0 layers, of 26 channels of 3")


def test_two_builds_of_one_way_are_equal_byte_by_byte(tmp_path: Path) -> None:
    made = [
        _quantizer(
            cnn(), _settings(prepare=("cross-layer",), bias_correction="try"), tmp_path
        ).build("minmax, bias corrected")
        for _ in range(2)
    ]
    assert made[0].model.SerializeToString() == made[1].model.SerializeToString()
