"""What each shipped profile makes of graphs that its hardware is particular about."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.runner import run_float_passes
from edgepack.packager.profiles.reading import list_profiles, load_profile
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.qdq_graph import PAIRS, Pair, QdqGraph
from tests.unit.packager_passes.target_models import TARGETS

COMPUTE = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
MICROSOFT = "com.microsoft"
REDUCED = (-64, 63)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The structure that a target asks for; the source is the target's own documentation.

    Attributes:
        activations, weights: Integer types.
        zero_point: Of activations; None where each tensor has its own.
        weight_zero_point: Of weights with one scale a tensor; None where each has its own.
        per_channel: Operator types with one scale per output channel, of type int8.
        domain: Of Quantize/DequantizeLinear, at opset 17.
        bias: Type of biases in the file.
        whole_graph: Whether every operator that works on floats is quantized.
        left: Operator types that stay float, whole graph or not.
        power_of_two: Whether every scale is one.
        tied: Operator types whose inputs and output share one scale.
        weight_limits: Least and greatest integer of a weight.
    """

    activations: str
    weights: str = "int8"
    zero_point: int | None
    weight_zero_point: int | None = 0
    per_channel: frozenset[str] = COMPUTE
    domain: str = ""
    bias: str = "int32"
    whole_graph: bool = False
    left: frozenset[str] = RECURRENT
    power_of_two: bool = False
    tied: frozenset[str] = frozenset()
    weight_limits: tuple[int, int] = (-128, 127)


CPU = Expected(activations="uint8", zero_point=None, weight_limits=REDUCED)
QNN = Expected(
    activations="uint16",
    weights="uint8",
    zero_point=None,
    weight_zero_point=None,
    per_channel=CONVOLUTIONS,
    domain=MICROSOFT,
    whole_graph=True,
)
AMD = Expected(
    activations="int8",
    zero_point=0,
    per_channel=frozenset(),
    domain=MICROSOFT,
    whole_graph=True,
    left=RECURRENT | {"Softmax", "LayerNormalization", "Erf"},
    tied=frozenset({"Concat"}),
)


def _with(expected: Expected, **changes: object) -> Expected:
    return Expected(**{**vars(expected), **changes})


QUANTIZING = {
    "cpu": CPU,
    "cpu-avx2": CPU,
    "cpu-vnni": _with(CPU, weight_limits=(-128, 127)),
    "cpu-arm64": _with(CPU, activations="int8", weight_limits=(-128, 127)),
    "openvino-cpu": _with(CPU, weight_limits=(-128, 127)),
    "openvino-npu": _with(CPU, weight_limits=(-128, 127), zero_point=128),
    "qnn-htp": QNN,
    "qnn-htp-a8w8": _with(QNN, activations="uint8", domain=""),
    "qnn-htp-v68": QNN,
    "qnn-htp-v69": QNN,
    "qnn-htp-v73": QNN,
    "qnn-htp-v75": QNN,
    "qnn-htp-v79": QNN,
    "qnn-htp-v81": QNN,
    "vitisai-xint8": _with(AMD, activations="uint8", zero_point=128, domain="", power_of_two=True),
    "vitisai-a8w8": AMD,
    "vitisai-a16w8": _with(AMD, activations="int16"),
    "tensorrt-int8": Expected(activations="int8", zero_point=0, bias="float32"),
}

OTHERWISE = {
    "fp32": "nothing is lowered",
    "vitisai-bf16": "the provider lowers",
    "openvino-gpu": "16-bit floats",
    "tensorrt-fp16": "16-bit floats",
    "coreml-fp16": "16-bit floats",
    "directml-fp16": "16-bit floats",
    "cpu-int4": "4-bit weights",
}
"""Profiles without static quantization; those that lower are looked at beside their passes."""

FIXED_SCALES = {"Sigmoid": (1 / 65536, 0), "Tanh": (1 / 32768, 32768)}
"""QNN's documentation, for 16-bit activations: (scale, zero point)."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """One profile's work on one model."""

    profile: Profile
    expected: Expected
    target: str
    prepared: onnx.ModelProto
    graph: QdqGraph
    original: onnx.ModelProto


@pytest.fixture(scope="module")
def made_models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Made]:
    """By profile and model, made when first asked for."""
    return {}


@pytest.fixture
def made(
    request: pytest.FixtureRequest, made_models: dict[tuple[str, str], Made], tmp_path: Path
) -> Made:
    """A quantizing profile's work on a model."""
    name, target = request.param
    if request.param not in made_models:
        made_models[request.param] = _make(name, target, tmp_path)
    return made_models[request.param]


def on(
    is_meant: Callable[[Expected], bool], *targets: str
) -> Callable[[Callable[..., None]], pytest.MarkDecorator]:
    """Run a test with each meant profile, on each named model (or all) that the profile reads."""
    profiles = [name for name, expected in QUANTIZING.items() if is_meant(expected)]
    cases = [
        (name, target)
        for name, target in product(profiles, targets or TARGETS)
        if target != "recurrent" or "LSTM" not in load_profile(name).limits.forbidden_ops
    ]
    assert cases
    return pytest.mark.parametrize("made", cases, indirect=True, ids="-".join)


def every(expected: Expected) -> bool:
    """Every profile."""
    return True


def _make(name: str, target: str, folder: Path) -> Made:
    profile = load_profile(name)
    given = TARGETS[target]()
    context = PassContext(
        profile_name=name, limits=profile.limits, samples=given.samples, work_dir=folder
    )
    prepared = run_float_passes(given.model, profile, context, silent).model
    settings = profile.quantize
    assert settings is not None, f"{name} does not quantize, and QUANTIZING says that it does"
    quantizer = StaticCandidateMaker(
        prepared, settings, given.samples, work_dir=folder, progress=silent
    )
    built = quantizer.build(spec(settings.ranges[0]))
    onnx.checker.check_model(built.model, full_check=True)
    return Made(
        profile=profile,
        expected=QUANTIZING[name],
        target=target,
        prepared=prepared,
        graph=QdqGraph(built.model),
        original=given.model,
    )


def test_every_shipped_profile_says_here_what_it_makes() -> None:
    known = {*QUANTIZING, *OTHERWISE}
    assert set(list_profiles()) - known == set(), "a new profile needs its structure written down"
    for name in set(list_profiles()) & set(OTHERWISE):
        assert load_profile(name).quantize is None, name


@on(every)
def test_the_model_is_within_the_limits_and_every_node_has_a_name_of_its_own(made: Made) -> None:
    model, limits = made.graph.model, made.profile.limits
    assert opset_of(model) == 17
    assert model.ir_version <= limits.ir_version_max
    assert not {node.op_type for node in made.graph.nodes} & set(limits.forbidden_ops)
    names = Counter(node.name for node in made.graph.nodes)
    assert "" not in names
    assert max(names.values()) == 1
    domains = {entry.domain for entry in model.opset_import}
    assert {node.domain for node in made.graph.nodes} <= domains


@on(every)
def test_it_runs_and_stays_near_the_float_model(made: Made, tmp_path: Path) -> None:
    for name, model in (("float", made.original), ("quantized", made.graph.model)):
        onnx.save(model, tmp_path / f"{name}.onnx")
    samples = TARGETS[made.target]().samples
    want, got = (
        [_run(tmp_path / f"{name}.onnx", samples.read(i)) for i in range(samples.count)]
        for name in ("float", "quantized")
    )
    error = np.linalg.norm(np.stack(got) - np.stack(want)) / np.linalg.norm(np.stack(want))
    assert error < 0.2


def _run(path: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    # As written: a CPU without VNNI saturates in the fused operators.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0], dtype=np.float64)


@on(every)
def test_activations_have_the_targets_type_zero_point_and_domain(made: Made) -> None:
    expected = made.expected
    assert made.graph.quantizers
    for pair in made.graph.quantizers:
        assert pair.zero_point.dtype.name == expected.activations, pair.node.name
        assert pair.scale.shape == ()
        if expected.zero_point is not None:
            assert pair.zero_point == expected.zero_point, pair.node.name
    for pair in (*made.graph.quantizers, *made.graph.dequantizers):
        assert pair.node.domain == expected.domain, pair.node.name


@on(every)
def test_weights_have_the_targets_type_and_channels_only_where_it_takes_them(made: Made) -> None:
    axes = {"Conv": 0, "ConvTranspose": 1, "Gemm": 0, "MatMul": 1}
    seen = 0
    for node in made.graph.nodes:
        stored = made.graph.stored(node.input[1]) if node.op_type in COMPUTE else None
        if stored is None:
            continue
        seen += 1
        integers = made.graph.constants[stored.node.input[0]]
        assert made.expected.weight_limits[0] <= integers.min() or integers.dtype == np.uint8
        assert integers.max() <= made.expected.weight_limits[1] or integers.dtype == np.uint8
        if node.op_type in made.expected.per_channel:
            assert stored.axis == axes[node.op_type], node.name
            assert stored.scale.shape == (integers.shape[stored.axis],)
            assert integers.dtype == np.int8
            assert not stored.zero_point.any()
        else:
            assert stored.axis is None, node.name
            assert integers.dtype.name == made.expected.weights
            if made.expected.weight_zero_point is not None:
                assert stored.zero_point == made.expected.weight_zero_point
    assert seen == _weights_in(made.prepared)


def _weights_in(model: onnx.ModelProto) -> int:
    constants = {tensor.name for tensor in model.graph.initializer}
    return sum(n.op_type in COMPUTE and n.input[1] in constants for n in model.graph.node)


@on(every, "residual_cnn", "decoder")
def test_biases_are_what_the_target_reads(made: Made) -> None:
    for node in made.graph.nodes:
        if node.op_type not in COMPUTE or len(node.input) < 3:
            continue
        if made.expected.bias == "float32":
            assert made.graph.constants[node.input[2]].dtype == np.float32, node.name
            continue
        data, weights = (made.graph.dequantized(name) for name in node.input[:2])
        bias = made.graph.stored(node.input[2])
        assert data is not None
        assert weights is not None
        assert bias is not None
        assert made.graph.constants[bias.node.input[0]].dtype == np.int32
        np.testing.assert_array_equal(bias.scale, data.scale * weights.scale)


@on(lambda expected: expected.power_of_two)
def test_scales_are_powers_of_two_where_the_target_shifts(made: Made) -> None:
    for pair in (*made.graph.quantizers, *made.graph.dequantizers):
        assert _is_power_of_two(pair), pair.node.name


def _is_power_of_two(pair: Pair) -> bool:
    exponents = np.log2(pair.scale.astype(np.float64))
    return bool(np.all(exponents == np.rint(exponents)))


@on(lambda expected: not expected.whole_graph, "residual_cnn", "transformer")
def test_only_what_feeds_the_compute_is_quantized_where_floats_are_cheap(made: Made) -> None:
    for pair in made.graph.quantizers:
        producer = made.graph.producer.get(pair.node.input[0])
        is_compute = producer is not None and producer.op_type in COMPUTE
        assert is_compute or _feeds_compute(made.graph, pair.node), pair.node.name


@on(lambda expected: expected.whole_graph)
def test_the_whole_graph_is_quantized_where_floats_would_leave_the_npu(made: Made) -> None:
    for node in made.graph.nodes:
        if node.op_type in (*PAIRS, *made.expected.left):
            continue
        source = made.graph.producer[node.input[0]]
        is_fused = node.op_type == "Relu" and source.op_type in COMPUTE
        assert source.op_type == "DequantizeLinear" or is_fused, node.name
        readers = {reader.op_type for reader in made.graph.readers(node.output[0])}
        assert readers in ({"QuantizeLinear"}, {"Relu"}), node.name


def _feeds_compute(graph: QdqGraph, quantize: onnx.NodeProto) -> bool:
    (dequantize,) = graph.readers(quantize.output[0])
    return any(r.op_type in COMPUTE for r in graph.readers(dequantize.output[0]))


@on(every, "transformer", "recurrent")
def test_operators_that_stay_float_keep_float_weights(made: Made) -> None:
    for node in made.graph.nodes:
        if node.op_type in made.expected.left:
            stored = [name for name in node.input if made.graph.stored(name) is not None]
            assert not stored, f"{node.name} reads integers"


@on(lambda expected: expected.per_channel == CONVOLUTIONS, "transformer")
def test_a_layer_normalization_never_has_signed_weights_on_qualcomm(made: Made) -> None:
    (node,) = made.graph.named("LayerNormalization")
    gamma = made.graph.stored(node.input[1])
    assert gamma is not None
    assert made.graph.constants[gamma.node.input[0]].dtype == np.uint8


@on(lambda expected: expected.activations == "uint16", "residual_cnn")
def test_sixteen_bit_sigmoid_and_tanh_have_qualcomms_scales(made: Made) -> None:
    for op_type, wanted in FIXED_SCALES.items():
        (node,) = made.graph.named(op_type)
        (reader,) = made.graph.readers(node.output[0])
        pair = made.graph.pair(reader)
        assert (float(pair.scale), int(pair.zero_point)) == wanted


@on(lambda expected: "Concat" in expected.tied, "residual_cnn")
def test_joined_branches_share_one_scale_where_the_target_aligns_them(made: Made) -> None:
    (node,) = made.graph.named("Concat")
    pairs = [made.graph.dequantized(name) for name in node.input]
    (after,) = made.graph.readers(node.output[0])
    assert None not in pairs
    scales = {float(pair.scale) for pair in (*pairs, made.graph.pair(after)) if pair}
    assert len(scales) == 1


@on(lambda expected: expected.whole_graph, "residual_cnn", "transformer")
def test_both_inputs_of_an_elementwise_operator_have_one_type(made: Made) -> None:
    for node in made.graph.nodes:
        if node.op_type in ("Add", "Mul", "Div"):
            pairs = [made.graph.dequantized(name) for name in node.input]
            types = {pair.zero_point.dtype.name for pair in pairs if pair is not None}
            assert types == {made.expected.activations}, node.name


@on(every)
def test_nothing_is_quantized_twice_and_no_integer_is_quantized(made: Made) -> None:
    inputs = {value.name: value.type.tensor_type.elem_type for value in made.original.graph.input}
    for pair in made.graph.quantizers:
        source = pair.node.input[0]
        producer = made.graph.producer.get(source)
        assert producer is None or producer.op_type not in PAIRS, pair.node.name
        assert inputs.get(source, onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT
    sources = Counter(pair.node.input[0] for pair in made.graph.quantizers)
    assert not sources or max(sources.values()) == 1
