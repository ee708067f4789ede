"""16-bit activations in a graph of 8 bits: which nodes, which types, which pairs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.calibrated_model import CalibratedModel
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.packager.tasks.noise import NoiseMeter
from edgepack.packager.tensors.sequence import Samples
from tests.graphs import graph_model
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import (
    cnn,
    constant,
    parsed_model,
    samples_for,
    spread_model,
    weight,
)
from tests.unit.packager_passes.qdq_graph import PAIRS, QdqGraph

node = helper.make_node


def _settings(**changes: object) -> Quantize:
    given = {"high_precision_activations": "uint16", "fixed_scales": True, **changes}
    settings = resolve_profile("qnn-htp-a8w8", {"pass": [{"name": "quantize", **given}]}).quantize
    assert settings is not None
    return settings


def _quantizer(model: onnx.ModelProto, folder: Path, **changes: object) -> StaticCandidateMaker:
    return StaticCandidateMaker(
        model, _settings(**changes), samples_for(model, 8), work_dir=folder, progress=silent
    )


def _with_high_precision(
    model: onnx.ModelProto, folder: Path, *names: str, **changes: object
) -> tuple[QdqGraph, dict[str, str]]:
    """The quantized graph, and by node the one type of all that it reads and writes."""
    result = (
        _quantizer(model, folder, **changes).build(spec("minmax", high_precision_nodes=names)).model
    )
    onnx.checker.check_model(result, full_check=True)
    graph = QdqGraph(result)
    return graph, {
        entry.name: _type_of(graph, entry) for entry in graph.nodes if entry.op_type not in PAIRS
    }


def _type_of(graph: QdqGraph, entry: onnx.NodeProto) -> str:
    pairs = [graph.dequantized(name) for name in entry.input]
    read = {
        pair.zero_point.dtype.name
        for pair in pairs
        if pair is not None and pair.zero_point.dtype.name in ("uint8", "uint16")
        # weights and biases aside
        if entry.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul")
        or pair.node.output[0] == entry.input[0]
    }
    written = {
        graph.pair(reader).zero_point.dtype.name
        for name in entry.output
        for reader in graph.readers(name)
        if reader.op_type == PAIRS[0]
    }
    assert len(read | written) == 1, f"{entry.name} reads {read} and writes {written}"
    return (read | written).pop()


def test_a_node_of_high_precision_reads_and_writes_16_bits_and_the_others_8(tmp_path: Path) -> None:
    graph, types = _with_high_precision(cnn(), tmp_path, "conv2")
    assert {name for name, kind in types.items() if kind == "uint16"} == {"conv2"}
    (conv,) = [entry for entry in graph.named("Conv") if entry.name == "conv2"]
    weights, bias = graph.stored(conv.input[1]), graph.stored(conv.input[2])
    data = graph.dequantized(conv.input[0])
    assert weights is not None
    assert bias is not None
    assert data is not None
    assert graph.constants[weights.node.input[0]].dtype == np.int8, "weights stay as they are"
    np.testing.assert_array_equal(bias.scale, data.scale * weights.scale)


def test_where_none_is_high_precision_nothing_differs_from_8_bits(tmp_path: Path) -> None:
    eight = (
        _quantizer(cnn(), tmp_path / "8", high_precision_activations="").build(spec("minmax")).model
    )
    mixed = _quantizer(cnn(), tmp_path / "16").build(spec("minmax")).model
    assert mixed == eight


def test_where_types_meet_one_dequantize_feeds_one_quantize_and_nothing_else(
    tmp_path: Path,
) -> None:
    graph, _ = _with_high_precision(cnn(), tmp_path, "conv2", "deconv")
    conversions = [
        pair.node
        for pair in graph.quantizers
        if graph.producer.get(pair.node.input[0], pair.node).op_type == PAIRS[1]
    ]
    made = {entry.output[0] for entry in conversions}
    assert made == {"p1/uint16/q", "c2/uint8/q", "r3/uint8/q"}, "each tensor is converted once"
    for entry in conversions:
        assert graph.readers(entry.input[0]) == [entry], "providers fuse a pair of their own only"


def test_an_input_that_both_kinds_read_is_quantized_from_the_floats_for_each(
    tmp_path: Path,
) -> None:
    model = parsed_model(
        "(float[1,4] x) => (float[1,4] y) { [fine] a = MatMul(x, w) [coarse] b = MatMul(x, v) "
        "[add] y = Add(a, b) }",
        [weight("w", 4, 4), weight("v", 4, 4, seed=1)],
    )
    graph, types = _with_high_precision(model, tmp_path, "fine")
    assert types == {"fine": "uint16", "coarse": "uint8", "add": "uint8"}
    first = [graph.pair(reader).zero_point.dtype.name for reader in graph.readers("x")]
    assert sorted(first) == ["uint16", "uint8"]


def test_what_only_moves_values_goes_with_the_node_that_makes_them(tmp_path: Path) -> None:
    _, types = _with_high_precision(cnn(), tmp_path / "producer", "conv1")
    assert types["conv1"] == types["pool"] == "uint16"
    assert types["conv2"] == "uint8"
    _, types = _with_high_precision(cnn(), tmp_path / "mover", "pool")
    assert set(types.values()) == {"uint8"}, "8 bits are not more when 16 carry them"


def test_what_moves_an_input_goes_with_a_reader_of_high_precision(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[2,4] x) => (float[1,4] y) { [turn] t = Transpose<perm=[1,0]>(x) "
        "[flatten] r = Reshape(t, shape) [product] y = MatMul(r, w) }",
        [constant("shape", [1, 8], np.int64), weight("w", 8, 4)],
    )
    _, types = _with_high_precision(model, tmp_path, "product")
    assert set(types.values()) == {"uint16"}


def test_the_rectifier_of_a_node_gets_high_precision_with_it(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[1,3,4,4] x) => (float[1,4,4,4] y) { [conv] c = Conv(x, w) "
        "[clip] r = Clip(c, low, high) [next] y = Conv(r, v) }",
        [
            weight("w", 4, 3, 1, 1),
            weight("v", 4, 4, 1, 1),
            constant("low", 0.0),
            constant("high", 1e-5),  # below the least range, so that saturation cannot do it
        ],
    )
    _, types = _with_high_precision(model, tmp_path, "conv")
    assert types == {"conv": "uint16", "clip": "uint16", "next": "uint8"}


def test_a_16_bit_sigmoid_has_qualcomms_scale_and_one_of_8_bits_its_own(tmp_path: Path) -> None:
    for names, fixed in ((("sigmoid",), True), ((), False)):
        graph, _ = _with_high_precision(cnn(), tmp_path / str(fixed), *names)
        (entry,) = graph.named("Sigmoid")
        (reader,) = graph.readers(entry.output[0])
        assert (float(graph.pair(reader).scale) == 1 / 65536) == fixed


@pytest.mark.parametrize(("opset", "domain"), [(17, "com.microsoft"), (21, "")])
def test_all_pairs_are_in_the_domain_that_has_16_bits(
    opset: int, domain: str, tmp_path: Path
) -> None:
    model = cnn()
    model.opset_import[0].version = opset
    graph, _ = _with_high_precision(model, tmp_path, "conv2")
    assert {pair.node.domain for pair in (*graph.quantizers, *graph.dequantizers)} == {domain}


def test_16_bits_hold_what_8_lose(tmp_path: Path) -> None:
    model = spread_model(300)
    samples = samples_for(model, 12)
    expected = ModelRunner(model, tmp_path / "float.onnx").run_all(samples)
    errors = []
    for names in ((), ("spread_layer", "pick_layer")):
        result = (
            _quantizer(model, tmp_path / "calibration")
            .build(spec("minmax", high_precision_nodes=names))
            .model
        )
        runner = ModelRunner(result, tmp_path / "quantized.onnx", optimize=False)
        got = runner.run_all(samples)
        errors.append(NoiseMeter(expected).mean_noise(got))
    assert errors[1] < errors[0] / 5


def test_an_uneven_join_is_high_precision_where_16_bits_hold_it(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[2,4] x) => (float[4,4] y) { [boxes] boxes = Mul(x, large) "
        "[scores] scores = Sigmoid(x) [join] y = Concat<axis=0>(boxes, scores) }",
        [constant("large", 300.0)],
    )
    _, types = _with_high_precision(model, tmp_path)
    assert types == {"boxes": "uint8", "scores": "uint8", "join": "uint16"}


def test_only_nodes_that_follow_no_other_are_offered(tmp_path: Path) -> None:
    quantizer = _quantizer(cnn(), tmp_path)
    assert quantizer.high_precision is not None
    assert set(quantizer.high_precision.names) == set(quantizer.names) - {"pool", "flatten"}
    assert _quantizer(cnn(), tmp_path, high_precision_activations="").high_precision is None


def test_nodes_of_high_precision_cost_what_their_weights_cost(tmp_path: Path) -> None:
    model = spread_model(50)
    quantizer = _quantizer(model, tmp_path)
    assert quantizer.high_precision is not None
    samples = samples_for(model, 4)
    eight = {cost.name: cost.noise for cost in quantizer.rank(spec("minmax"), samples, silent)}
    costs = quantizer.rank(spec("minmax", (), quantizer.names), samples, silent)
    sixteen = {cost.name: cost.noise for cost in costs}
    assert sixteen["pick_layer"] < eight["pick_layer"] / 100, "its weights are 0 and 1"
    assert sixteen["spread_layer"] > 0.005, "its weights are 1 and 50"


def test_a_node_that_is_asked_for_as_float_and_in_high_precision_is_float(tmp_path: Path) -> None:
    built = _quantizer(cnn(), tmp_path).build(spec("minmax", ("conv2",), ("conv2", "sigmoid")))
    graph = QdqGraph(built.model)
    (conv,) = [entry for entry in graph.named("Conv") if entry.name == "conv2"]
    assert conv.input[1] == "w2"
    assert graph.pair(graph.readers(graph.named("Sigmoid")[0].output[0])[0]).scale == 1 / 65536


def test_a_note_counts_the_16_bit_nodes_and_those_that_go_along(tmp_path: Path) -> None:
    built = _quantizer(cnn(), tmp_path).build(spec("minmax", high_precision_nodes=("conv1",)))
    assert built.notes == (
        "2 of 9 quantized nodes have uint16 activations, the others uint8; 1 tensors are converted "
        "from one to the other. What only moves values goes with the node that makes them.",
    )
    assert "conv1" in built.lowered


def test_where_activations_have_16_bits_already_no_node_gets_more(tmp_path: Path) -> None:
    assert _quantizer(cnn(), tmp_path, activations="uint16").high_precision is None


def test_a_table_that_is_looked_up_stays_as_small_as_it_is(tmp_path: Path) -> None:
    model = onnx.shape_inference.infer_shapes(
        graph_model(
            "(int64[3] tokens) => (float[3,2] y) { [look_up] looked_up = Gather(table, tokens) "
            "[product] y = MatMul(looked_up, w) }",
            [weight("table", 9, 4), weight("w", 4, 2)],
        )
    )
    samples = Samples(count=2, read=lambda _: {"tokens": np.arange(3)}, source="the test")
    calibrated = CalibratedModel(
        model, _settings(), samples, work_dir=tmp_path / "calibration", progress=silent
    )
    result, _ = calibrated.quantize(spec("minmax", (), ("product",)), model)
    stored = {tensor.name: tensor.data_type for tensor in result.graph.initializer}
    assert stored["table/q"] == onnx.TensorProto.UINT8
