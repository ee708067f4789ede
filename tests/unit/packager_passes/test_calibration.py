"""Ranges from observed values, and memory that does not grow with the samples."""

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.profiles.calibration_methods import is_known_method, percentile_of
from edgepack.packager.progress import silent
from edgepack.packager.quantization.calibration import Calibration
from edgepack.packager.quantization.static.calibration_methods import choose_range, choose_scale
from edgepack.packager.quantization.static.scales import (
    IntegerType,
    Scale,
    fixed_scale,
    off_powers_of_two,
    quantize,
    restore,
    scale_of_range,
    scale_of_weights,
)
from edgepack.packager.tensors.observations import BINS, Observation, count_into
from edgepack.packager.tensors.sequence import Feeds, Samples
from tests.graphs import graph_model
from tests.unit.packager_passes.models import cnn, samples_for

UINT8 = IntegerType(dtype="uint8", symmetric=False)
INT8 = IntegerType(dtype="int8", symmetric=True)
XINT8 = IntegerType(dtype="uint8", symmetric=True, power_of_two=True)


def _observe(values: np.ndarray) -> Observation:
    low, high = float(values.min()), float(values.max())
    counts = np.zeros(BINS, dtype=np.int64)
    count_into(counts, values.astype(np.float32), low, high)
    return Observation(low=low, high=high, counts=counts)


def _normal_with_outlier() -> np.ndarray:
    return np.append(np.random.default_rng(0).normal(0, 1, 100_000), [100.0])


def test_minmax_covers_everything() -> None:
    assert choose_range("minmax", _observe(_normal_with_outlier()), UINT8)[1] == 100.0


@pytest.mark.parametrize("method", ["percentile-99.9", "mse", "entropy"])
def test_the_other_methods_leave_a_lonely_outlier_out(method: str) -> None:
    seen = _observe(_normal_with_outlier())
    assert seen.counts is not None
    counts = seen.counts * 100
    counts[-1] = 1
    often = Observation(low=seen.low, high=seen.high, counts=counts)
    for kind in (UINT8, INT8):
        low, high = choose_range(method, often, kind)
        assert seen.low <= low < 0.0
        assert high < 50.0


def test_a_percentile_leaves_that_share_outside() -> None:
    values = np.random.default_rng(0).uniform(0, 1, 200_000)
    low, high = choose_range("percentile-90", _observe(values), UINT8)
    assert low == pytest.approx(0.05, abs=0.01)
    assert high == pytest.approx(0.95, abs=0.01)


def test_a_percentile_takes_whole_bins_on_both_sides_alike() -> None:
    counts = np.full(BINS, 7, dtype=np.int64)
    width = 2.0 / BINS
    low, high = choose_range("percentile-87", Observation(low=-1.0, high=1.0, counts=counts), UINT8)
    bins = int(0.065 * BINS)
    assert low == pytest.approx(-1.0 + bins * width, abs=width / 100)
    assert high == pytest.approx(1.0 - bins * width, abs=width / 100)


def test_entropy_counts_what_it_cuts_off_at_the_bound() -> None:
    values = np.random.default_rng(0).normal(0, 1, 100_000)
    _, high = choose_range("entropy", _observe(values), UINT8)
    assert 1e-4 < np.mean(np.abs(values) > high) < 2e-3, "3.3 standard deviations"


def test_mse_keeps_the_range_of_evenly_spread_values() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 100_000)
    low, high = choose_range("mse", _observe(values), UINT8)
    assert low == pytest.approx(-1, abs=0.05)
    assert high == pytest.approx(1, abs=0.05)


def test_mse_picks_the_better_exponent_for_powers_of_two() -> None:
    observed = _observe(_normal_with_outlier())
    widest = choose_scale("minmax", observed, XINT8)
    best = choose_scale("mse", observed, XINT8)
    assert float(widest.scale) == 1.0
    assert np.log2(float(best.scale)) == round(np.log2(float(best.scale)))
    assert float(best.scale) < float(widest.scale)


@pytest.mark.parametrize("kind", [UINT8, INT8, XINT8], ids=["uint8", "int8", "xint8"])
@pytest.mark.parametrize("bounds", [(-1.0, 3.0), (0.0, 5.0), (-2.0, 0.0), (2.0, 3.0)])
def test_zero_is_exact_and_the_range_is_covered(
    kind: IntegerType, bounds: tuple[float, float]
) -> None:
    scale = scale_of_range(*bounds, kind)
    zero, low, high = restore(quantize(np.array([0.0, *bounds]), scale), scale)
    assert zero == 0.0
    step = float(scale.scale)
    assert low == pytest.approx(bounds[0], abs=step)
    assert high == pytest.approx(bounds[1], abs=step)


def test_mse_weights_lose_less_than_minmax_weights_when_there_is_an_outlier() -> None:
    values = _normal_with_outlier().astype(np.float32)
    errors = []
    for method in ("minmax", "mse"):
        scale = scale_of_weights(values, None, INT8, method)
        errors.append(float(np.mean((restore(quantize(values, scale), scale) - values) ** 2)))
    assert errors[1] < errors[0]


@pytest.mark.parametrize(
    ("kind", "shares"),
    [(INT8, np.linspace(1.0, 0.4, 13)), (XINT8, 2.0 ** -np.arange(6))],
    ids=["int8", "powers of two"],
)
def test_mse_weights_take_the_range_with_the_least_squared_error_of_each_channel(
    kind: IntegerType, shares: np.ndarray
) -> None:
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 1, (6, 40_000)).astype(np.float32)
    weights[:, 0] = (1, 3, 5, 7, 9, 11)
    weights[0] = rng.uniform(-0.7, 0.7, 40_000)

    def errors(scale: Scale) -> np.ndarray:
        return np.asarray(
            np.mean((restore(quantize(weights, scale), scale) - weights) ** 2, axis=1)
        )

    widest = scale_of_weights(weights, 0, kind, "minmax")
    found = scale_of_weights(weights, 0, kind, "mse")
    tried = [replace(widest, scale=(widest.scale * share).astype(np.float32)) for share in shares]
    least = np.min([errors(scale) for scale in tried], axis=0)
    assert errors(found) == pytest.approx(least, rel=1e-4)
    assert len(set((found.scale / widest.scale).round(3).tolist())) > 1, "not all alike"


def test_the_names_for_powers_of_two_mean_the_covering_and_the_best_exponent() -> None:
    observed = _observe(_normal_with_outlier())
    covering = choose_scale("nonoverflow", observed, XINT8)
    assert covering == choose_scale("minmax", observed, XINT8)
    assert covering.highest_real >= 100.0 > covering.highest_real / 2
    assert choose_scale("minmse", observed, XINT8) == choose_scale("mse", observed, XINT8)


def test_entropy_of_normal_values_lies_inside_what_minmax_covers() -> None:
    values = np.random.default_rng(0).standard_t(4, 200_000)
    observed = _observe(values)
    _, widest = choose_range("minmax", observed, UINT8)
    _, entropy = choose_range("entropy", observed, UINT8)
    assert np.quantile(values, 0.99) < entropy < 0.8 * widest


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("minmax", True),
        ("minmse", True),
        ("percentile-99.99", True),
        ("percentile-x", False),
        ("max", False),
    ],
)
def test_methods_are_known_by_name(name: str, known: bool) -> None:
    assert is_known_method(name) is known


@pytest.mark.parametrize("name", ["percentile-50", "percentile-100", "percentile-0.1"])
def test_a_percentile_lies_between_50_and_100(name: str) -> None:
    assert percentile_of(name) is None


def test_bounds_are_those_of_all_samples(tmp_path: Path) -> None:
    model = cnn()
    samples = samples_for(model, 6)
    calibration = Calibration(model, ["images"], samples, work_dir=tmp_path, progress=silent)
    values = np.stack([feeds["images"] for feeds in samples])
    seen = calibration.bounds["images"]
    assert (seen.low, seen.high) == (values.min(), values.max())


def test_each_pass_reads_each_sample_once(tmp_path: Path) -> None:
    model = cnn()
    given = samples_for(model, 5)
    read: list[int] = []

    def counting(index: int) -> Feeds:
        read.append(index)
        return given.read(index)

    samples = Samples(count=5, read=counting, source="test")
    calibration = Calibration(model, ["c1", "c2"], samples, work_dir=tmp_path, progress=silent)
    assert calibration.histograms is calibration.histograms
    assert calibration.bounds.keys() == {"c1", "c2"}
    assert read == [0, 1, 2, 3, 4] * 2


def test_histograms_of_many_samples_take_no_more_memory_than_of_few(tmp_path: Path) -> None:
    model = cnn()
    peaks = []
    for count in (10, 150):
        gc.collect()
        tracemalloc.start()
        assert Calibration(
            model, ["c1", "c2", "s2"], samples_for(model, count), work_dir=tmp_path, progress=silent
        ).histograms
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_a_sample_that_makes_a_tensor_nan_is_named(tmp_path: Path) -> None:
    model = cnn()
    given = samples_for(model, 3)

    def read(index: int) -> Feeds:
        feeds = given.read(index)
        broken = {name: np.full_like(value, np.nan) for name, value in feeds.items()}
        return broken if index == 1 else feeds

    samples = Samples(count=3, read=read, source="folder/of/samples")
    calibration = Calibration(model, ["c1"], samples, work_dir=tmp_path, progress=silent)
    with pytest.raises(BuildError) as caught:
        _ = calibration.bounds
    assert "tensor 'c1' holds NaN on a calibration sample" in str(caught.value)
    assert "folder/of/samples, sample 1" in str(caught.value)


def _logarithms() -> onnx.ModelProto:
    return graph_model("(float[1,4] x) => (float[1,4] y) { r = Relu(x) l = Log(r) y = Exp(l) }")


def test_bounds_may_be_infinite_and_histograms_leave_those_out(tmp_path: Path) -> None:
    model = _logarithms()
    given = samples_for(model, 3)
    calibration = Calibration(model, ["r", "l", "y"], given, work_dir=tmp_path, progress=silent)
    seen = calibration.histograms
    assert {name: entry.is_finite for name, entry in seen.items()} == {
        "r": True,
        "l": False,
        "y": True,
    }
    assert seen["l"].low == -np.inf
    assert seen["l"].counts is None
    assert seen["r"].counts is not None
    assert seen["r"].counts.sum() == 12


def test_where_nothing_is_to_be_seen_nothing_is(tmp_path: Path) -> None:
    model = _logarithms()
    calibration = Calibration(model, [], samples_for(model, 3), work_dir=tmp_path, progress=silent)
    assert calibration.bounds == {}
    assert calibration.histograms == {}


@pytest.mark.filterwarnings("error")
def test_a_range_that_floats_cannot_divide_counts_as_one_value() -> None:
    counts = np.zeros(BINS, dtype=np.int64)
    count_into(counts, np.array([0, 1e-40, 2e-40], np.float32), 0.0, 2e-40)
    assert counts[0] == 3
    assert counts.sum() == 3


def test_weight_scales_that_a_power_of_two_brings_to_the_output_are_made_larger_by_a_trifle() -> (
    None
):
    data, output = fixed_scale(3e-4, 0, UINT8), fixed_scale(7e-4, 0, UINT8)
    power = 7e-4 / 3e-4 / 256.0
    near = np.array([power * (1.0 - 2e-7), power, power * 1.001, power * 1.4], dtype=np.float32)
    weight = Scale(scale=near, zero_point=np.zeros(4, np.int8), axis=0, kind=INT8)
    moved = off_powers_of_two(weight, data, output).scale / near - 1.0
    assert (moved[:2] > 4e-6).all()
    assert (moved[:2] < 2e-5).all()
    assert (moved[2:] == 0.0).all()
