"""Patterns rewritten for the HTP simulator are wrong there before, and right after the rewrite."""

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.graph.source_quantization import read_source_quantization
from edgepack.packager.passes.apply_workarounds import apply_workarounds
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.workarounds.table import WORKAROUNDS
from edgepack.packager.profiles.pass_settings import ApplyWorkarounds
from edgepack.packager.profiles.reading import load_profile, resolve_profile
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.evaluator import open_plain, profile_settings
from edgepack.packager.runtime.trial import try_model
from edgepack.packager.tensors.sequence import Samples, SampleSplit
from tests.integration.quantized_on_qnn import try_quantized
from tests.unit.packager_passes.models import (
    constant,
    make_model,
    parsed_model,
    samples_for,
    weight,
)
from tests.unit.packager_passes.preparing import prepare

_PROFILE = load_profile("qnn-htp")
_NARROW = load_profile("qnn-htp-a8w8")
_WRONG = 0.1
_INSTALLED = importlib.metadata.version("onnxruntime-qnn")
"""Share of an output's size; 16 bits alone leave less than a hundredth of that."""

_node = helper.make_node


def _error_there(
    model: onnx.ModelProto,
    settings: ApplyWorkarounds,
    folder: Path,
    *,
    profile: Profile = _PROFILE,
    samples: Samples | None = None,
) -> float:
    """Return the error of a quantized model on the simulator, against the CPU."""
    folder.mkdir()
    samples = samples or samples_for(model, 4)
    context = PassContext(
        profile_name="mine",
        limits=profile.limits,
        samples=samples,
        work_dir=folder,
        provider=profile.device.provider,
        simulator_version=_INSTALLED,
    )
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    written = apply_workarounds(copy, settings, context).model
    if read_source_quantization(model.graph):
        path = folder / "model.onnx"
        onnx.save(written, path)
        trial = try_model(path, samples.pick(range(1)), profile_settings(profile), timeout_s=300.0)
    else:
        path, trial = try_quantized(written, profile, samples, folder, count=1)
    assert set(trial.placement.left) <= {"QuantizeLinear", "DequantizeLinear"}
    want = open_plain(path)(samples.read(0))["y"].astype(np.float64)
    got = trial.outputs[0]["y"].astype(np.float64)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def _silu(rows: int) -> onnx.ModelProto:
    shape = (1, 8, rows, 10)
    return parsed_model(
        f"(float{list(shape)} x) => (float{list(shape)} y) {{ [conv] c = Conv(x, w) "
        "[sigmoid] s = Sigmoid(c) [silu] y = Mul(c, s) }",
        [weight("w", 8, 8, 1, 1)],
    )


@pytest.mark.parametrize("rows", [8, 13])
def test_a_convolution_times_its_sigmoid_is_right_on_maps_of_other_sizes(
    rows: int, tmp_path: Path
) -> None:
    assert _error_there(_silu(rows), ApplyWorkarounds(ops=()), tmp_path / "as-it-was") < 0.001


def _resize(
    height: int, scales: Sequence[float], mode: str = "nearest", **how: str
) -> onnx.ModelProto:
    shape, resized = (1, 4, height, 10), (1, 4, int(height * scales[0]), int(10 * scales[1]))
    return make_model(
        [_node("Resize", ["x", "", "scales"], ["y"], name="resize", mode=mode, **how)],
        {"x": shape},
        {"y": resized},
        [constant("scales", [1.0, 1.0, *scales])],
    )


def _pool(shape: Sequence[int], pooled: Sequence[int], **how: Any) -> onnx.ModelProto:
    node = _node("AveragePool", ["x"], ["y"], name="pool", kernel_shape=[3, 3], **how)
    return make_model([node], {"x": shape}, {"y": pooled}, [])


def _tanh() -> onnx.ModelProto:
    return parsed_model(
        "(float[1,16,8] x) => (float[1,16,12] y) { [product] m = MatMul(x, w) [tanh] y = Tanh(m) }",
        [weight("w", 8, 12)],
    )


def _softplus() -> onnx.ModelProto:
    shape = (1, 8, 10, 10)
    return parsed_model(
        f"(float{list(shape)} x) => (float{list(shape)} y) {{ [conv] c = Conv(x, w) "
        "[softplus] y = Softplus(c) }",
        [weight("w", 8, 8, 1, 1)],
    )


def _power() -> onnx.ModelProto:
    shape = [1, 4, 6]
    node = _node("Pow", ["two", "x"], ["y"], name="power")
    return make_model([node], {"x": shape}, {"y": shape}, [constant("two", 2.0)])


def _sum() -> onnx.ModelProto:
    shape = [1, 8, 16]
    node = _node("CumSum", ["x", "axis"], ["y"], name="sum")
    return make_model([node], {"x": shape}, {"y": shape}, [constant("axis", 1, np.int64)])


def _lookup() -> onnx.ModelProto:
    """Return the last row of a table, 48 times, by computed indices."""
    constants = [constant("none", 0, np.int64), constant("last", 63, np.int64)]
    return parsed_model(
        "(float[1,48,4] x) => (float[1,48,16] y) { "
        "[greatest] greatest = ArgMax<axis=2, keepdims=0>(x) [zeros] zeros = Mul(greatest, none) "
        "[rows] rows = Add(zeros, last) [lookup] y = Gather(table, rows) }",
        [weight("table", 64, 16), *constants],
    )


def _reciprocal() -> onnx.ModelProto:
    shape = [1, 4, 16]
    return parsed_model(
        f"(float{list(shape)} x) => (float{list(shape)} y) {{ [positive] s = Sigmoid(x) "
        "[little] f = Mul(s, fifth) [reciprocal] y = Reciprocal(f) }",
        [constant("fifth", 0.2)],
    )


def _pad() -> onnx.ModelProto:
    """Return a pad of integers, in a quantized source model."""
    pair = ["s", "z"]
    nodes = [
        _node("QuantizeLinear", ["x", *pair], ["q"], name="q"),
        _node("DequantizeLinear", ["q", *pair], ["d"], name="d"),
        _node("Pad", ["d", "pads"], ["p"], name="pad"),
        _node("QuantizeLinear", ["p", *pair], ["r"], name="r"),
        _node("DequantizeLinear", ["r", *pair], ["y"], name="y"),
    ]
    constants = [
        constant("s", 0.02),
        constant("z", -128, np.int8),
        constant("pads", [0, 0, 2, 2, 0, 0, 2, 2], np.int64),
    ]
    return make_model(nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 4, 12, 12]}, constants)


_HALF = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "floor"}
_PLAIN = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_CORNERS = {"coordinate_transformation_mode": "align_corners", "nearest_mode": "ceil"}
_STRIDED = _pool([1, 8, 8, 8], [1, 8, 4, 4], strides=[2, 2], ceil_mode=1)
_NARROW_MAP = _pool([1, 1, 8, 8], [1, 1, 8, 8], pads=[1, 1, 1, 1])
_WRONG_THERE = {
    "Reciprocal of little": (_reciprocal(), _PROFILE),
    **{f"SiLU of {rows} rows": (_silu(rows), _PROFILE) for rows in (9, 10, 11, 12)},
    "Softplus of a convolution": (_softplus(), _PROFILE),
    "Tanh of 16 rows": (_tanh(), _PROFILE),
    "Pow of a constant base": (_power(), _PROFILE),
    "CumSum along rows": (_sum(), _NARROW),
    "Gather of the last row": (_lookup(), _PROFILE),
    "Pad of integers": (_pad(), _NARROW),
    "Resize nearest by half pixels": (_resize(9, (2.0, 2.0), **_HALF), _PROFILE),
    "Resize nearest by corners": (_resize(9, (2.0, 2.0), **_CORNERS), _NARROW),
    "Resize nearest to sizes that are not whole": (_resize(9, (0.4, 0.75), **_PLAIN), _PROFILE),
    "Resize linear to half of 13 rows": (_resize(13, (0.5, 1.5), "linear"), _PROFILE),
    "AveragePool in ceil mode": (_STRIDED, _NARROW),
    "AveragePool of one channel": (_NARROW_MAP, _PROFILE),
}


@pytest.mark.parametrize(("model", "profile"), _WRONG_THERE.values(), ids=_WRONG_THERE.keys())
def test_a_workaround_is_needed_and_right(
    model: onnx.ModelProto, profile: Profile, tmp_path: Path
) -> None:
    was = _error_there(model, ApplyWorkarounds(ops=()), tmp_path / "as-it-was", profile=profile)
    assert was > _WRONG, "the simulator computes it rightly now: the row is needed no longer"
    assert _error_there(model, ApplyWorkarounds(), tmp_path / "written", profile=profile) < 0.03


def test_the_table_names_the_release_that_the_tests_here_run_on() -> None:
    rows = [row for row in WORKAROUNDS if row.seen.provider == _PROFILE.device.provider]
    assert {row.op for row in rows if _INSTALLED not in row.seen.releases} == set()


@pytest.mark.parametrize(("op", "low", "high"), [("HardSigmoid", -2.0, 0.0), ("Log", 0.3, 3.0)])
def test_outputs_with_16_bits_are_right_with_the_scales_that_the_simulator_computes_by(
    op: str, low: float, high: float, tmp_path: Path
) -> None:
    shape = (1, 8, 4)
    model = parsed_model(
        f"(float{list(shape)} x) => (float{list(shape)} y) {{ [only] y = {op}(x) }}"
    )

    def values(index: int) -> dict[str, np.ndarray]:
        drawn = np.random.default_rng(index).uniform(low, high, shape)
        return {"x": drawn.astype(np.float32)}

    samples = Samples(count=4, read=values, source="made by the test")
    free = resolve_profile("qnn-htp", {"pass": [{"name": "quantize", "fixed_scales": False}]})
    was = _error_there(model, ApplyWorkarounds(), tmp_path / "free", profile=free, samples=samples)
    assert was > _WRONG, "the simulator computes it rightly now: the scale is needed no longer"
    assert _error_there(model, ApplyWorkarounds(), tmp_path / "fixed", samples=samples) < 0.001


def test_a_normalized_vector_beyond_the_range_of_its_samples_keeps_its_sign(tmp_path: Path) -> None:
    shape = (1, 1, 16, 32)
    node = _node("LpNormalization", ["x"], ["y"], name="only", axis=-1, p=2)
    model = make_model([node], {"x": shape}, {"y": shape}, [])
    rng = np.random.default_rng(0)
    drawn = rng.uniform(-1.0, 1.0, (4, *shape)).astype(np.float32)
    beyond = drawn[0].copy()
    beyond[..., 3] = -6.0
    samples = Samples(count=4, read=lambda index: {"x": drawn[index]}, source="made by the test")
    single = Samples(count=1, read=lambda _: {"x": beyond}, source="made by the test")

    def error(profile: Profile, folder: Path) -> float:
        folder.mkdir()
        path, _ = try_quantized(model, profile, samples, folder, count=1)
        trial = try_model(path, single, profile_settings(profile), timeout_s=300.0)
        want = open_plain(path)({"x": beyond})["y"].astype(np.float64)
        got = trial.outputs[0]["y"].astype(np.float64)
        return float(np.linalg.norm(got - want) / np.linalg.norm(want))

    free = resolve_profile("qnn-htp", {"pass": [{"name": "quantize", "fixed_scales": False}]})
    was = error(free, tmp_path / "free")
    assert was > _WRONG, "the simulator computes it rightly now: the scale is needed no longer"
    assert error(_PROFILE, tmp_path / "fixed") < 0.001


def _gates(factor: float) -> onnx.ModelProto:
    """Return a convolution and its HardSwish; all but the loudest have this weight scale."""
    shape = (1, 8, 4, 6)
    weights = np.random.default_rng(3).normal(0.0, 1.0, (8, 8, 1, 1)).astype(np.float32)
    weights /= np.abs(weights).max(axis=1, keepdims=True)
    weights *= np.array([4.0, *[127.0 * factor] * 7], np.float32).reshape(8, 1, 1, 1)
    return parsed_model(
        f"(float{list(shape)} x) => (float{list(shape)} y) {{ [conv] c = Conv(x, w) "
        "[gate] y = HardSwish(c) }",
        [constant("w", weights)],
    )


def test_channels_are_right_that_a_power_of_two_brings_to_their_hard_swish(tmp_path: Path) -> None:
    free = resolve_profile("qnn-htp", {"pass": [{"name": "quantize", "fixed_scales": False}]})
    power = _gates(1e-3)
    for turn in ("first", "again"):  # what the channels give moves the least output by a trifle
        path, _ = try_quantized(power, free, samples_for(power, 4), tmp_path / turn, count=1)
        constants = onnx.load(path).graph.initializer
        scale = {tensor.name: float(numpy_helper.to_array(tensor).max()) for tensor in constants}
        power = _gates(scale["y/scale"] / scale["x/scale"] / 256.0 * (1.0 - 1e-7))
    was = _error_there(power, ApplyWorkarounds(), tmp_path / "free", profile=free)
    assert was > _WRONG, "the simulator computes it rightly now: the step is needed no longer"
    assert _error_there(power, ApplyWorkarounds(), tmp_path / "fixed") < 0.001


def test_what_is_wrong_and_has_no_workaround_is_refused_with_the_operators_name(
    tmp_path: Path,
) -> None:
    nodes = [
        _node("Conv", ["x", "w"], ["c"], name="conv"),
        _node("Resize", ["c", "", "twice"], ["y"], name="larger", mode="cubic", **_CORNERS),
    ]
    weights = [weight("w", 4, 4, 1, 1), constant("twice", [1.0, 1.0, 2.0, 2.0])]
    model = make_model(nodes, {"x": [1, 4, 9, 9]}, {"y": [1, 4, 18, 18]}, weights)
    onnx.save(model, tmp_path / "model.onnx")
    samples = samples_for(model, 12)
    split = SampleSplit(calibration=samples, search=samples, held_out=samples)
    with pytest.raises(BuildError) as refused:
        prepare(tmp_path / "model.onnx", _PROFILE, split, tmp_path / "work")
    told = str(refused.value)
    assert "QNNExecutionProvider computes output 'y' with an error of" in told
    assert "Seen to be computed wrongly there, in some graphs: larger (Resize)" in told
