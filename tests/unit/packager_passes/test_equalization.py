"""Equalization moves ranges between layers and keeps what the model computes."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgepack.packager.graph.queries import index_graph
from edgepack.packager.quantization.channels import ChannelAxis, channel_maxima
from edgepack.packager.quantization.equalization.cross_layer import can_equalize, equalize
from edgepack.packager.quantization.equalization.smooth import can_smooth, smooth
from edgepack.packager.runtime.model_run import ModelRunner, largest_difference
from edgepack.packager.tensors.sequence import Feeds, Samples
from tests.unit.packager_passes.models import constant, parsed_model, samples_for, weight

node = helper.make_node
_AFFINE = {"gain/smoothed", "shift/smoothed"}


def _differs(before: onnx.ModelProto, after: onnx.ModelProto, folder: Path) -> float:
    samples = samples_for(before, 4)
    onnx.checker.check_model(after)
    return largest_difference(
        ModelRunner(before, folder / "before.onnx").run_all(samples),
        ModelRunner(after, folder / "after.onnx").run_all(samples),
    )


def _with_outlier(name: str, size: int) -> onnx.TensorProto:
    values = np.ones(size, dtype=np.float32)
    values[3] = 80.0
    return numpy_helper.from_array(values, name)


def _normalized(*, has_residual: bool, is_decomposed: bool = False) -> onnx.ModelProto:
    """A LayerNormalization with one huge channel, read by a MatMul and a Gemm; a third product."""
    normalize = "[norm] h = LayerNormalization<axis=-1>(x, gamma, beta)"
    if is_decomposed:
        normalize = (
            "[normalize] n = MeanVarianceNormalization<axes=[1]>(x) [gain] g = Mul(n, gamma) "
            "[shift] h = Add(g, beta)"
        )
    return parsed_model(
        f"(float[4,8] x) => (float[4,8] y) {{ {normalize} [first] a = MatMul(h, w1) "
        "[second] b = Gemm<transB=1>(h, w2, b2) [sum] c = Add(a, b) [relu] r = Relu(c) "
        f"[third] d = MatMul(r, w3) [residual] y = Add(d, {'h' if has_residual else 'c'}) }}",
        [
            _with_outlier("gamma", 8),
            weight("beta", 8),
            weight("w1", 8, 8),
            weight("w2", 8, 8, seed=1),
            weight("b2", 8, seed=2),
            weight("w3", 8, 8, seed=3),
        ],
    )


@pytest.mark.parametrize("is_decomposed", [False, True], ids=["fused", "decomposed"])
@pytest.mark.parametrize("has_residual", [False, True], ids=["alone", "residual"])
def test_smoothing_keeps_what_a_model_computes(
    tmp_path: Path, has_residual: bool, is_decomposed: bool
) -> None:
    model = _normalized(has_residual=has_residual, is_decomposed=is_decomposed)
    untouched = onnx.ModelProto()
    untouched.CopyFrom(model)
    after, _ = smooth(model, 0.5, samples_for(model, 4), tmp_path)
    assert model == untouched
    assert _differs(model, after, tmp_path) < 1e-5


def test_smoothing_divides_where_the_normalization_can_take_it_over(tmp_path: Path) -> None:
    model = _normalized(has_residual=False)
    samples = samples_for(model, 4)
    after, note = smooth(model, 0.5, samples, tmp_path)
    assert [entry.op_type for entry in after.graph.node] == [
        entry.op_type for entry in model.graph.node
    ]
    place = ChannelAxis("h", 2, 1)
    before = channel_maxima(model, [place], samples, tmp_path / "m.onnx")["h"]
    smoothed = channel_maxima(after, [place], samples, tmp_path / "m.onnx")["h"]
    assert smoothed.max() / np.median(smoothed) < 0.3 * before.max() / np.median(before)
    assert note.startswith("SmoothQuant (alpha 0.5): 1 of 2 inputs of matrix products smoothed, 0")


def test_a_residual_keeps_its_own_values(tmp_path: Path) -> None:
    for is_decomposed, made in ((False, {"norm/smoothed"}), (True, _AFFINE)):
        model = _normalized(has_residual=True, is_decomposed=is_decomposed)
        after, note = smooth(model, 0.5, samples_for(model, 4), tmp_path)
        had = {entry.name for entry in model.graph.node}
        assert {entry.name for entry in after.graph.node} - had == made
        assert "0 of them by an extra Mul" in note


@pytest.mark.parametrize("has_residual", [False, True], ids=["alone", "residual"])
def test_reshapes_before_the_products_are_looked_through(
    tmp_path: Path, has_residual: bool
) -> None:
    model = parsed_model(
        "(float[2,4,8] x) => (float[2,4,8] y) { [norm] n = LayerNormalization<axis=-1>(x, gamma) "
        "[flatten1] f1 = Reshape(n, flat) [flatten2] f2 = Reshape(n, flat) "
        "[first] a = Gemm(f1, w1) [second] b = Gemm(f2, w2) [sum] c = Add(a, b) "
        f"[restore] d = Reshape(c, back) [residual] y = Add(d, {'n' if has_residual else 'x'}) }}",
        [
            _with_outlier("gamma", 8),
            weight("w1", 8, 8),
            weight("w2", 8, 8, seed=1),
            constant("flat", [8, 8], np.int64),
            constant("back", [2, 4, 8], np.int64),
        ],
    )
    after, note = smooth(model, 0.5, samples_for(model, 4), tmp_path)
    assert _differs(model, after, tmp_path) < 1e-5
    assert "1 of 1 inputs of matrix products smoothed, 0 of them by an extra Mul" in note
    added = {entry.name for entry in after.graph.node} - {entry.name for entry in model.graph.node}
    twice = {"norm/smoothed", "flatten1/smoothed", "flatten2/smoothed"}
    assert added == (twice if has_residual else set())


def test_outliers_that_nothing_can_take_over_are_divided_by_a_mul(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[4,8] x) => (float[4,8] y, float[4,8] ignored) { [gain] scaled = Mul(x, gamma) "
        "[sigmoid] ignored = Sigmoid(scaled) [relu] r = Relu(scaled) [product] y = MatMul(r, w) }",
        [_with_outlier("gamma", 8), weight("w", 8, 8)],
    )
    after, note = smooth(model, 0.5, samples_for(model, 4), tmp_path)
    assert [entry.name for entry in after.graph.node][3:] == ["r/smoothed", "product"]
    assert "1 of 1 inputs of matrix products smoothed, 1 of them by an extra Mul" in note
    assert _differs(model, after, tmp_path) < 1e-5


def test_types_stay_known_behind_an_operator_of_onnx_runtimes_own(tmp_path: Path) -> None:
    model = _normalized(has_residual=True)
    gelu = node("Gelu", ["x"], ["g"], name="gelu", domain="com.microsoft")
    model.graph.node.insert(0, gelu)
    model.graph.node[1].input[0] = "g"
    model.opset_import.add(domain="com.microsoft", version=1)
    after, _ = smooth(model, 0.5, samples_for(model, 4), tmp_path)
    index = index_graph(after.graph)
    made = [name for entry in after.graph.node[1:] for name in entry.output]
    assert all(index.is_float(name) for name in made), made


def test_a_product_of_two_activations_cannot_be_smoothed() -> None:
    model = parsed_model(
        "(float[4,8] x, float[8,4] z) => (float[4,4] y) { [product] y = MatMul(x, z) }"
    )
    assert not can_smooth(index_graph(model.graph))


def test_channel_maxima_are_those_of_all_samples_read_one_at_a_time(tmp_path: Path) -> None:
    model = _normalized(has_residual=False)
    given = samples_for(model, 5)
    order: list[int] = []

    def read(index: int) -> Feeds:
        order.append(index)
        return given.read(index)

    samples = Samples(count=5, read=read, source="test")
    seen = channel_maxima(model, [ChannelAxis("x", 2, 1)], samples, tmp_path / "m.onnx")["x"]
    every = np.abs(np.concatenate([feeds["x"] for feeds in given]))
    assert seen == pytest.approx(every.max(axis=0))
    assert order == [0, 1, 2, 3, 4]


def _uneven(kind: str, *, group: int = 1, transposed: int = 0) -> onnx.ModelProto:
    """Two layers in a row with weights that reach from 0.001 to 1 over the channels."""
    uneven = np.geomspace(1e-3, 1.0, 8)
    if kind == "Gemm":
        w1 = numpy_helper.to_array(weight("w1", 8, 8)) * uneven[None, :]
        layer, how = "Gemm", f"<transB={transposed}>"
        before, after = "[2,8]", "[2,8]"
        w2 = weight("w2", 8, 8, seed=1)
    else:
        w1 = numpy_helper.to_array(weight("w1", 8, 3, 3, 3)) * uneven[:, None, None, None]
        layer, how = "Conv", f"<group={group}>"
        before, after = "[1,3,8,8]", "[1,8,4,4]"
        w2 = weight("w2", 8, 8 // group, 3, 3, seed=1)
    between = {"Gemm": "Relu(h)", "PRelu": "PRelu(h, slope)", "Clip": "Clip(h, zero, six)"}
    return parsed_model(
        f"(float{before} x) => (float{after} y) {{ [first] h = {layer}(x, w1, b1) "
        f"[between] r = {between.get(kind, f'{kind}(h)')} [second] y = {layer}{how}(r, w2) }}",
        [
            numpy_helper.from_array(w1.astype(np.float32), "w1"),
            weight("b1", 8),
            w2,
            *([constant("zero", 0.0), constant("six", 6.0)] if kind == "Clip" else []),
            *([weight("slope", 8, 1, 1)] if kind == "PRelu" else []),
        ],
    )


@pytest.mark.parametrize(
    ("kind", "group", "transposed"),
    [("Relu", 1, 0), ("PRelu", 2, 0), ("LeakyRelu", 8, 0), ("Gemm", 1, 0), ("Gemm", 1, 1)],
)
def test_two_layers_in_a_row_get_weights_that_reach_equally_far(
    tmp_path: Path, kind: str, group: int, transposed: int
) -> None:
    model = _uneven(kind, group=group, transposed=transposed)
    after, note = equalize(model, samples_for(model, 2), tmp_path)
    assert _differs(model, after, tmp_path) < 1e-5
    (w1,) = (t for t in after.graph.initializer if t.name == "first/equalized_1")
    values = np.abs(numpy_helper.to_array(w1))
    channels = values.max(axis=0) if kind == "Gemm" else values.reshape(8, -1).max(axis=1)
    assert channels.max() / channels.min() < 100
    assert note.startswith("Cross-layer equalization: 1 pair of layers; the greatest weight")


def _clipped(*, lowest: float = 0.0, bound: float = 6.0) -> onnx.ModelProto:
    """`_uneven` with a Clip; half of the first layer's channels stay far below a bound of 6."""
    model = _uneven("Clip")
    for tensor in model.graph.initializer:
        if tensor.name in ("zero", "six"):
            value = lowest if tensor.name == "zero" else bound
            tensor.CopyFrom(constant(tensor.name, value))
        elif tensor.name == "b1":
            tensor.CopyFrom(constant("b1", [0.1, 0.2, 0.3, 0.4, 9.0, 8.0, 7.0, 6.5]))
    return model


def test_behind_a_clip_only_channels_that_keep_clear_of_its_bound_are_scaled(
    tmp_path: Path,
) -> None:
    model = _clipped()
    samples = samples_for(model, 4)
    assert can_equalize(index_graph(model.graph))
    after, note = equalize(model, samples, tmp_path)
    assert [entry.op_type for entry in after.graph.node] == ["Conv", "Clip", "Conv"]
    assert _differs(model, after, tmp_path) < 1e-5
    before = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "w1"))
    scaled = next(t for t in after.graph.initializer if t.name == "first/equalized_1")
    factors = (before / numpy_helper.to_array(scaled)).reshape(8, -1)[:, 0]
    assert (factors[:4] < 0.9).all(), "channels below the bound grow"
    assert factors[4:] == pytest.approx(1.0), "channels that reach the bound stay"
    assert note.startswith(
        "Cross-layer equalization: 1 pair of layers, 1 of them with a Clip between, where 50% of "
        "the channels keep clear of its bound and may be scaled; the greatest weight"
    )


def test_a_scaled_channel_keeps_clear_of_the_bound_of_its_clip(tmp_path: Path) -> None:
    model = _clipped()
    samples = samples_for(model, 4)
    after, _ = equalize(model, samples, tmp_path)
    place = ChannelAxis("r", 4, 1)
    reached = channel_maxima(after, [place], samples, tmp_path / "m.onnx")["r"]
    assert reached[:4].max() < 6.0 / 1.25 + 1e-4
    assert reached[:4].max() > 4.0, "and is scaled as far as that allows"


def test_a_clip_that_does_not_start_at_zero_ends_the_row() -> None:
    assert not can_equalize(index_graph(_clipped(lowest=-1.0).graph))
