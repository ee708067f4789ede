"""Methods of static quantization: ids, words and order, and what they do to a real model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import silent
from edgepack.packager.quantization.contract import QuantizationMethod
from edgepack.packager.quantization.static.bias_correction import correct_biases
from edgepack.packager.quantization.static.candidate_maker import (
    StaticCandidateMaker,
    costly_methods,
    plain_methods,
)
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.tasks.arrays import Outputs
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import (
    attention,
    cnn,
    make_model,
    parsed_model,
    samples_for,
    weight,
)


def _settings(**changes: object) -> Quantize:
    plain = {"ops": "compute", "activations": "uint8", "weights": "int8"}
    return Quantize(**(plain | changes))  # type: ignore[arg-type]


def _quantizer(model: onnx.ModelProto, settings: Quantize, folder: Path) -> StaticCandidateMaker:
    return StaticCandidateMaker(
        model, settings, samples_for(model, 8), work_dir=folder, progress=silent
    )


@pytest.mark.parametrize(
    ("method", "identity", "words"),
    [
        (QuantizationMethod(base="percentile-99.99"), "percentile-99.99", "percentile-99.99"),
        (
            QuantizationMethod(base="minmse", has_gptq_weights=True),
            "minmse+gptq",
            "minmse, weights rounded by GPTQ",
        ),
        (
            QuantizationMethod(preparation="smooth", base="mse"),
            "smooth+mse",
            "smooth + mse",
        ),
        (
            QuantizationMethod(preparation="cross-layer", base="mse", has_corrected_biases=True),
            "cross-layer+mse+bias-corrected",
            "cross-layer + mse, bias corrected",
        ),
    ],
)
def test_journals_keep_a_methods_id_and_people_read_its_words(
    method: QuantizationMethod, identity: str, words: str
) -> None:
    assert method.id == identity
    assert method.words == words


def _ids(methods: Sequence[QuantizationMethod]) -> list[str]:
    return [method.id for method in methods]


def test_every_range_is_plain_and_only_the_first_two_are_combined() -> None:
    settings = _settings(
        ranges=("mse", "minmax", "entropy"), prepare=("cross-layer",), bias_correction="try"
    )
    assert _ids(plain_methods(settings)) == ["mse", "minmax", "entropy"]
    assert _ids(costly_methods(settings, ("cross-layer",))) == [
        "cross-layer+mse",
        "cross-layer+minmax",
        "mse+bias-corrected",
        "minmax+bias-corrected",
        "cross-layer+mse+bias-corrected",
        "cross-layer+minmax+bias-corrected",
    ]
    assert plain_methods(_settings()) == (QuantizationMethod(base="minmax"),)
    assert costly_methods(_settings(), ()) == ()


def test_gptq_is_tried_after_all_ranges_and_with_the_first_alone() -> None:
    settings = _settings(ranges=("mse", "minmax"), weight_rounding="gptq", bias_correction="try")
    assert _ids(plain_methods(settings)) == ["mse", "minmax", "mse+gptq"]
    assert _ids(costly_methods(settings, ())) == ["mse+bias-corrected", "minmax+bias-corrected"]


def test_a_preparation_is_offered_only_where_the_model_gives_occasion(tmp_path: Path) -> None:
    settings = _settings(prepare=("smooth", "cross-layer"))
    quantizer = _quantizer(attention(), settings, tmp_path)
    assert _ids(quantizer.methods) == ["minmax"]
    assert _ids(quantizer.costly_methods) == ["smooth+minmax"]


def _outlier_model() -> onnx.ModelProto:
    """A normalization with one channel a hundred times the others, then a product."""
    gain = np.ones(16, dtype=np.float32)
    gain[5] = 100.0
    return parsed_model(
        "(float[4,16] x) => (float[4,8] y) { [norm] n = LayerNormalization<axis=-1>(x, gain) "
        "[product] y = MatMul(n, w) }",
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
    plain = quantizer.build(spec("minmax"))
    smoothed = quantizer.build(spec("minmax", preparation="smooth"))
    assert smoothed.lowered == plain.lowered == ("product",)
    assert plain.notes == ()
    assert smoothed.notes[0].startswith("SmoothQuant (alpha 0.5): 1 of 1 inputs")
    assert _error(model, smoothed.model, tmp_path) < 0.5 * _error(model, plain.model, tmp_path)


def _cascade() -> onnx.ModelProto:
    """Two convolutions whose channels differ a thousandfold, for scales per tensor."""
    uneven = np.geomspace(1e-3, 1.0, 8).reshape(8, 1, 1, 1)
    w1 = (numpy_helper.to_array(weight("w1", 8, 3, 3, 3)) * uneven).astype(np.float32)
    w2 = (numpy_helper.to_array(weight("w2", 4, 8, 3, 3)) / uneven[:, 0][None]).astype(np.float32)
    return parsed_model(
        "(float[1,3,8,8] x) => (float[1,4,4,4] y) { [first] h = Conv(x, w1) [relu] r = Relu(h) "
        "[second] y = Conv(r, w2) }",
        {"w1": w1, "w2": w2},
    )


def test_equalized_layers_lose_less_with_one_scale_a_tensor(tmp_path: Path) -> None:
    model = _cascade()
    quantizer = _quantizer(model, _settings(prepare=("cross-layer",)), tmp_path)
    plain = _error(model, quantizer.build(spec("minmax")).model, tmp_path)
    equalized = _error(
        model, quantizer.build(spec("minmax", preparation="cross-layer")).model, tmp_path
    )
    assert equalized < 0.5 * plain


def test_corrected_biases_take_the_mean_error_away(tmp_path: Path) -> None:
    model = _cascade()
    settings = _settings(bias_correction="try")
    quantizer = _quantizer(model, settings, tmp_path)
    samples = samples_for(model, 8)
    right = ModelRunner(model, tmp_path / "right.onnx").run_all(samples)
    shifts = []
    for is_corrected in (False, True):
        built = quantizer.build(spec("minmax", has_corrected_biases=is_corrected))
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
    plain = _error(model, quantizer.build(spec("minmax")).model, tmp_path)
    corrected = quantizer.build(spec("minmax", has_corrected_biases=True))
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


def test_two_builds_by_one_method_are_equal_byte_by_byte(tmp_path: Path) -> None:
    made = [
        _quantizer(
            cnn(), _settings(prepare=("cross-layer",), bias_correction="try"), tmp_path
        ).build(spec("minmax", has_corrected_biases=True))
        for _ in range(2)
    ]
    assert made[0].model.SerializeToString() == made[1].model.SerializeToString()
