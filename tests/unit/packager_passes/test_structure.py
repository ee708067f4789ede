"""What the quantized graphs look like: types, scales, axes, domains, forbidden patterns."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.profiles.reading import load_profile, resolve_profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import (
    attention,
    cnn,
    constant,
    make_model,
    parsed_model,
    samples_for,
    weight,
)
from tests.unit.packager_passes.qdq_graph import QdqGraph

QUANTIZING = ("cpu", "qnn-htp", "qnn-htp-a8w8", "openvino-cpu", "vitisai-xint8")


def _settings(profile: str, **changes: object) -> Quantize:
    settings = resolve_profile(profile, {"pass": [{"name": "quantize", **changes}]}).quantize
    assert settings is not None
    return settings


def _quantized(
    model: onnx.ModelProto,
    settings: Quantize,
    folder: Path,
    *,
    ranges: str = "minmax",
    float_nodes: tuple[str, ...] = (),
) -> onnx.ModelProto:
    quantizer = StaticCandidateMaker(
        model, settings, samples_for(model, 8), work_dir=folder, progress=silent
    )
    result = quantizer.build(spec(ranges, float_nodes)).model
    onnx.checker.check_model(result, full_check=True)
    return result


def _constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def _nodes(model: onnx.ModelProto, kind: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == kind]


def _feeding(model: onnx.ModelProto, name: str) -> onnx.NodeProto | None:
    return next((node for node in model.graph.node if name in node.output), None)


def _weights(model: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, onnx.NodeProto]]:
    """Each compute node with the DequantizeLinear of its constant weights."""
    constants = _constants(model)
    for node in model.graph.node:
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            source = _feeding(model, node.input[1])
            if source is not None and source.input[0] in constants:
                yield node, source


@pytest.mark.parametrize("profile", QUANTIZING)
@pytest.mark.parametrize("make", [cnn, attention])
def test_inputs_and_outputs_keep_names_shapes_and_float_types(
    profile: str, make: object, tmp_path: Path
) -> None:
    model = make(mask_value=-64.0) if make is attention else cnn()
    result = _quantized(model, _settings(profile), tmp_path)
    for before, after in zip(
        (*model.graph.input, *model.graph.output),
        (*result.graph.input, *result.graph.output),
        strict=True,
    ):
        assert before == after


@pytest.mark.parametrize("profile", QUANTIZING)
def test_types_are_those_of_the_profile(profile: str, tmp_path: Path) -> None:
    settings = _settings(profile)
    result = _quantized(cnn(), settings, tmp_path)
    constants = _constants(result)
    for node in _nodes(result, "QuantizeLinear"):
        assert constants[node.input[2]].dtype.name == settings.activations
    for node, source in _weights(result):
        axis = [a.i for a in source.attribute if a.name == "axis"]
        own = settings.per_channel_weights if node.op_type in settings.per_channel else ""
        assert constants[source.input[0]].dtype.name == (own or settings.weights)
        assert bool(axis) == (node.op_type in settings.per_channel)


@pytest.mark.parametrize(
    ("op_type", "axis"), [("Conv", 0), ("ConvTranspose", 1), ("Gemm", 0)], ids=str
)
def test_channels_lie_on_the_operators_own_axis(op_type: str, axis: int, tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings("cpu"), tmp_path)
    constants = _constants(result)
    for node, source in _weights(result):
        if node.op_type == op_type:
            assert helper.get_node_attr_value(source, "axis") == axis
            integers, scales = constants[source.input[0]], constants[source.input[1]]
            assert scales.shape == (integers.shape[axis],)
            assert not constants[source.input[2]].any(), "weights per channel are symmetric"


def test_matmul_weights_have_their_channels_last(tmp_path: Path) -> None:
    result = _quantized(attention(mask_value=-64.0), _settings("cpu"), tmp_path)
    found = list(_weights(result))
    assert len(found) == 4
    assert all(helper.get_node_attr_value(source, "axis") == 1 for _, source in found)


def test_a_product_of_two_activations_quantizes_both(tmp_path: Path) -> None:
    result = _quantized(attention(mask_value=-64.0), _settings("cpu"), tmp_path)
    (scores,) = [node for node in result.graph.node if node.name == "scores"]
    for name in scores.input:
        source = _feeding(result, name)
        assert source is not None
        assert source.op_type == "DequantizeLinear"


@pytest.mark.parametrize("profile", QUANTIZING)
def test_biases_are_int32_with_the_product_of_both_scales(profile: str, tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings(profile), tmp_path)
    constants = _constants(result)
    for name in ("conv1", "conv2", "classify"):
        (node,) = [entry for entry in result.graph.node if entry.name == name]
        data, weights, bias = (_feeding(result, entry) for entry in node.input)
        assert data is not None
        assert weights is not None
        assert bias is not None
        assert constants[bias.input[0]].dtype == np.int32
        expected = constants[data.input[1]] * constants[weights.input[1]]
        np.testing.assert_array_equal(constants[bias.input[1]], expected)


def test_power_of_two_profiles_have_no_other_scale_and_one_scale_a_tensor(tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings("vitisai-xint8"), tmp_path, ranges="mse")
    constants = _constants(result)
    scales = {node.input[1] for node in _nodes(result, "DequantizeLinear")}
    assert scales
    for name in scales:
        assert constants[name].shape == ()
        exponent = np.log2(float(constants[name]))
        assert exponent == round(exponent)
    for node in _nodes(result, "QuantizeLinear"):
        assert constants[node.input[2]] == 128
        assert node.domain == ""


def test_sixteen_bits_use_the_contrib_domain_below_opset_21_and_the_standard_one_from_there(
    tmp_path: Path,
) -> None:
    old = _quantized(cnn(), _settings("qnn-htp"), tmp_path)
    assert {node.domain for node in _nodes(old, "QuantizeLinear")} == {"com.microsoft"}
    assert {entry.domain for entry in old.opset_import} == {"", "com.microsoft"}
    newer = onnx.version_converter.convert_version(cnn(), 21)
    new = _quantized(onnx.shape_inference.infer_shapes(newer), _settings("qnn-htp"), tmp_path)
    assert {node.domain for node in _nodes(new, "QuantizeLinear")} == {""}


def test_the_whole_graph_is_quantized_for_an_npu(tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings("qnn-htp"), tmp_path)
    for node in result.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        source = _feeding(result, node.input[0])
        assert source is not None, node.name
        assert source.op_type == "DequantizeLinear", node.name


def test_qualcomms_fixed_scale_is_on_the_sigmoid(tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings("qnn-htp"), tmp_path)
    constants = _constants(result)
    (sigmoid,) = _nodes(result, "Sigmoid")
    (quantize,) = [
        node for node in _nodes(result, "QuantizeLinear") if node.input[0] == sigmoid.output[0]
    ]
    assert float(constants[quantize.input[1]]) == 1 / 65536
    assert constants[quantize.input[2]] == 0


def test_only_the_compute_is_quantized_for_a_cpu(tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings("cpu"), tmp_path)
    (sigmoid,) = _nodes(result, "Sigmoid")
    readers = [node for node in result.graph.node if sigmoid.output[0] in node.input]
    assert [node.op_type for node in readers] == ["Concat"]


def test_inputs_only_leaves_no_quantized_output(tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings("openvino-cpu"), tmp_path)
    compute = {"Conv", "ConvTranspose", "Gemm"}
    made = {out for node in result.graph.node if node.op_type in compute for out in node.output}
    assert not [node for node in _nodes(result, "QuantizeLinear") if node.input[0] in made]


@pytest.mark.parametrize("profile", ["cpu", "qnn-htp"])
def test_a_rectifier_that_saturation_takes_over_is_left_out(profile: str, tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings(profile), tmp_path)
    assert not _nodes(result, "Clip")
    assert not _nodes(result, "Relu")


def test_a_rectifier_stays_where_zero_is_in_the_middle_of_the_range(tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings("vitisai-xint8"), tmp_path)
    (relu,) = _nodes(result, "Relu")
    source = _feeding(result, relu.input[0])
    assert source is not None
    assert source.op_type == "ConvTranspose", "no pair between a layer and its rectifier"


def test_operators_that_move_data_share_one_scale_with_what_they_move(tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings("qnn-htp"), tmp_path)
    constants = _constants(result)
    (pool,) = _nodes(result, "MaxPool")
    before = _feeding(result, pool.input[0])
    (after,) = [n for n in _nodes(result, "QuantizeLinear") if n.input[0] == pool.output[0]]
    assert before is not None
    for position in (1, 2):
        assert constants[before.input[position]] == constants[after.input[position]]


def test_concat_is_aligned_for_amd_by_the_largest_scale_of_what_it_joins(tmp_path: Path) -> None:
    found = []
    for name, ties in (("aligned", ["Concat"]), ("apart", [])):
        settings = _settings("vitisai-xint8", tie_ops=ties)
        result = _quantized(cnn(), settings, tmp_path / name)
        constants = _constants(result)
        (concat,) = _nodes(result, "Concat")
        sources = [_feeding(result, name) for name in concat.input]
        found.append(
            {float(constants[source.input[1]]) for source in sources if source is not None}
        )
    aligned, apart = found
    assert len(apart) > 1
    assert aligned == {max(apart)}


@pytest.mark.parametrize("profile", QUANTIZING)
def test_a_tensor_read_twice_is_quantized_once(profile: str, tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings(profile), tmp_path)
    sources = [node.input[0] for node in _nodes(result, "QuantizeLinear")]
    assert len(sources) == len(set(sources))


def test_float_nodes_read_and_write_floats(tmp_path: Path) -> None:
    model = cnn()
    result = _quantized(model, _settings("cpu"), tmp_path, float_nodes=("conv2",))
    (node,) = [entry for entry in result.graph.node if entry.name == "conv2"]
    assert node.input[1] == "w2"
    assert node.output[0] == "c2"


@pytest.mark.parametrize("profile", ["qnn-htp", "vitisai-xint8"])
def test_the_rectifier_of_a_float_node_stays_float_with_it(profile: str, tmp_path: Path) -> None:
    model = cnn()
    result = _quantized(model, _settings(profile), tmp_path, float_nodes=("deconv",))
    (relu,) = _nodes(result, "Relu")
    assert relu.input[0] == "c3", "no pair between a float layer and its rectifier"
    assert _nodes(result, "DequantizeLinear"), "the others are quantized all the same"


def test_one_bit_of_the_weights_stays_unused_where_cpus_saturate(tmp_path: Path) -> None:
    result = _quantized(cnn(), _settings("cpu"), tmp_path)
    constants = _constants(result)
    for _, source in _weights(result):
        integers = constants[source.input[0]]
        assert integers.min() >= -64
        assert integers.max() <= 63


def test_a_constant_tensor_keeps_a_sane_scale(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[1,4] x) => (float[1,4] y) { [mul] zeros = Mul(x, nothing) "
        "[matmul] y = MatMul(zeros, w) }",
        [constant("nothing", 0.0), weight("w", 4, 4)],
    )
    result = _quantized(model, _settings("qnn-htp-a8w8"), tmp_path)
    scales = [_constants(result)[n.input[1]] for n in _nodes(result, "QuantizeLinear")]
    assert all(float(scale.min()) >= 1e-4 / 255 * 0.999 for scale in scales)


def test_a_large_bias_widens_its_weights_scale_rather_than_overflow(tmp_path: Path) -> None:
    tiny = numpy_helper.from_array(np.full((4, 4), 1e-9, dtype=np.float32), "w")
    model = parsed_model(
        "(float[1,4] x) => (float[1,4] y) { [gemm] y = Gemm(x, w, b) }",
        [tiny, constant("b", [1e4, 1.0, 2.0, 3.0])],
    )
    result = _quantized(model, _settings("cpu"), tmp_path)
    (gemm,) = _nodes(result, "Gemm")
    bias = _feeding(result, gemm.input[2])
    assert bias is not None
    constants = _constants(result)
    restored = constants[bias.input[0]] * constants[bias.input[1]].astype(np.float64)
    assert restored[0] == pytest.approx(1e4, rel=1e-3)


def test_weights_inside_control_flow_are_left_alone(tmp_path: Path) -> None:
    def branch(name: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node("MatMul", ["hidden", "inner"], [name], name=f"inner_{name}")],
            name,
            [],
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4])],
            [weight("inner", 4, 4)],
        )

    model = make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["hidden"], name="outer"),
            helper.make_node("ReduceSum", ["hidden"], ["sum"], name="sum", keepdims=0),
            helper.make_node("Greater", ["sum", "zero"], ["positive"], name="greater"),
            helper.make_node(
                "If",
                ["positive"],
                ["y"],
                name="choose",
                then_branch=branch("yes"),
                else_branch=branch("no"),
            ),
        ],
        {"x": [1, 4]},
        {"y": [1, 4]},
        [weight("w", 4, 4), constant("zero", 0.0)],
    )
    result = _quantized(model, _settings("cpu"), tmp_path)
    (choice,) = _nodes(result, "If")
    for attribute in choice.attribute:
        assert [node.op_type for node in attribute.g.node] == ["MatMul"]
        assert attribute.g.initializer[0].data_type == onnx.TensorProto.FLOAT


def test_recurrent_layers_stay_float(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[3,1,4] x) => (float[3,1,2] y) { [lstm] seq = LSTM<hidden_size=4>(x, w, r) "
        "[squeeze] flat = Squeeze(seq, axis) [matmul] y = MatMul(flat, out) }",
        [
            weight("w", 1, 16, 4),
            weight("r", 1, 16, 4),
            weight("out", 4, 2),
            constant("axis", [1], np.int64),
        ],
    )
    result = _quantized(model, _settings("qnn-htp"), tmp_path)
    (lstm,) = _nodes(result, "LSTM")
    assert list(lstm.input[:3]) == ["x", "w", "r"]


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    for profile in QUANTIZING:
        first, second = (
            _quantized(cnn(), _settings(profile), tmp_path, ranges="mse") for _ in range(2)
        )
        assert first.SerializeToString(deterministic=True) == second.SerializeToString(
            deterministic=True
        )


def test_shipped_npu_profiles_forbid_control_flow() -> None:
    for name in ("qnn-htp", "qnn-htp-a8w8", "vitisai-xint8"):
        assert {"If", "Loop"} <= set(load_profile(name).limits.forbidden_ops)


def test_the_scale_of_a_logarithm_is_not_smaller_than_a_chip_computes_by(tmp_path: Path) -> None:
    """On Qualcomm's simulator a 16-bit Log with a scale of 2**-14 or less is one constant."""
    for power, is_narrow in ((0.2, True), (3.0, False)):
        model = parsed_model(
            "(float[1,64] x) => (float[1,64] y) { [sigmoid] s = Sigmoid(x) "
            "[power] powers = Pow(s, power) [log] y = Log(powers) }",
            [constant("power", power)],
        )
        graph = QdqGraph(_quantized(model, _settings("qnn-htp"), tmp_path / str(power)))
        (log,) = graph.named("Log")
        stored = next(pair for pair in graph.quantizers if pair.node.input[0] == log.output[0])
        least = np.float32(1.01 * 2.0**-14)
        assert (stored.scale == least) == is_narrow
        assert stored.scale >= least
        lowest = -float(stored.scale) * int(stored.zero_point)
        assert lowest <= power * np.log(0.1), "what it covers is covered still"


@pytest.mark.parametrize("scaled", ["", "alpha", "beta"])
def test_a_product_that_scales_what_it_computes_is_no_product_of_integers(
    scaled: str, tmp_path: Path
) -> None:
    gemm = helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="gemm", alpha=1.0)
    if scaled:
        gemm.attribute[0].CopyFrom(helper.make_attribute(scaled, 0.5))
    plain = helper.make_node("MatMul", ["h", "v"], ["y"], name="plain")
    weights = [weight("w", 8, 4), weight("b", 4), weight("v", 4, 4)]
    model = make_model([gemm, plain], {"x": [1, 8]}, {"y": [1, 4]}, weights)
    quantizer = StaticCandidateMaker(
        model, _settings("cpu"), samples_for(model, 8), work_dir=tmp_path, progress=silent
    )
    assert quantizer.names == (("plain",) if scaled else ("gemm", "plain"))
