"""Models that are legal and seldom: each is built rightly, or refused with the reason."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from edgepack.errors import BuildError
from tests.graphs import graph_model
from tests.integration.loose_builds import Builder
from tests.integration.source_graphs import random_weight as weight

_TWO_PRODUCTS = "h = MatMul(x, w1) r = Relu(h) y = MatMul(r, w2)"


def _weights() -> list[onnx.TensorProto]:
    return [weight("w1", 8, 16), weight("w2", 16, 4)]


def _is_near(source: onnx.ModelProto, built: onnx.ModelProto, **feeds: np.ndarray) -> bool:
    """Return whether each output of the built model is within 10 % of the source's size."""
    sessions = [onnxruntime.InferenceSession(it.SerializeToString()) for it in (source, built)]
    expected, got = (session.run(None, feeds) for session in sessions)
    assert len(expected) == len(got)
    return all(
        before.shape == after.shape
        and np.linalg.norm(after - before) <= 0.1 * np.linalg.norm(before)
        for before, after in zip(expected, got, strict=True)
    )


def _row(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 8)).astype(np.float32)


@pytest.mark.parametrize("profile", ["cpu", "vitisai-xint8"])
def test_an_output_that_is_a_constant_stays_one(builder: Builder, profile: str) -> None:
    source = graph_model(
        "(float[1,8] x) => (float[1,4] y, int64[2] version) {"
        f"{_TWO_PRODUCTS} version = Constant<value_ints=[1,2]>() }}",
        _weights(),
    )
    built, _ = builder(source, profile)
    assert [value.name for value in built.graph.output] == ["y", "version"]
    assert _is_near(source, built, x=_row())


def test_what_optimization_folds_takes_no_name_that_the_model_has(builder: Builder) -> None:
    names = {"w1": "edgepack/folded_0", "w2": "edgepack/folded_1"}
    source = graph_model(
        "(float[1,8] x) => (float[1,4] y) {"
        "c = Constant<value_float=0.5>() s = Sqrt(c) a = Mul(x, s) "
        "h = MatMul(a, w1) r = Relu(h) y = MatMul(r, w2) }",
        _weights(),
    )
    for tensor in source.graph.initializer:
        tensor.name = names[tensor.name]
    for node in source.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    built, _ = builder(source, "vitisai-xint8")
    assert _is_near(source, built, x=_row())


@pytest.mark.parametrize(
    "names",
    [
        {"h": "x/scale", "r": "x/q", "w1": "x/zero_point", "w2": "y/float"},
        {"h": "x/ReduceMin", "r": "x/values", "w1": "edgepack/phase", "w2": "r"},
        {"x": "w1/dq", "h": "w1/scale", "r": "w1/q", "w2": "w1/zero_point"},
    ],
)
@pytest.mark.parametrize("profile", ["cpu", "vitisai-xint8", "directml-fp16"])
def test_names_that_edgepack_gives_may_be_there_already(
    builder: Builder, names: dict[str, str], profile: str
) -> None:
    source = graph_model(f"(float[1,8] x) => (float[1,4] y) {{ {_TWO_PRODUCTS} }}", _weights())
    source.graph.input[0].name = names.get("x", "x")
    for tensor in source.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in source.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    built, _ = builder(source, profile)
    assert [it.name for it in built.graph.input] == [names.get("x", "x")]
    assert [it.name for it in built.graph.output] == ["y"]
    assert _is_near(source, built, **{names.get("x", "x"): _row()})


@pytest.mark.parametrize("profile", ["cpu", "vitisai-xint8", "directml-fp16"])
def test_nodes_may_stand_in_any_order(builder: Builder, profile: str) -> None:
    source = graph_model(
        "(float[1,8] x) => (float[1,4] y) { a = Identity(x) h = MatMul(a, w1) r = Relu(h) "
        "y = MatMul(r, w2) }",
        _weights(),
    )
    ordered = list(source.graph.node)
    del source.graph.node[:]
    source.graph.node.extend(reversed(ordered))
    built, _ = builder(source, profile)
    assert any("topologically sorted" in note for note in builder.notes)
    assert _is_near(source, built, x=_row())


@pytest.mark.parametrize("profile", ["directml-fp16", "tensorrt-fp16"])
def test_a_model_of_16_bit_floats_is_built_for_them(builder: Builder, profile: str) -> None:
    """Its inputs and outputs are 16-bit; an output is read inside, another is an input."""
    source = graph_model(
        f"(float16[1,8] x) => (float16[1,4] y, float16[1,16] r, float16[1,8] x) "
        f"{{ {_TWO_PRODUCTS} }}",
        [
            numpy_helper.from_array(numpy_helper.to_array(it).astype(np.float16), it.name)
            for it in _weights()
        ],
    )
    built, variant = builder(source, profile)
    kinds = {it.type.tensor_type.elem_type for it in (*built.graph.input, *built.graph.output)}
    assert kinds == {onnx.TensorProto.FLOAT16}
    assert variant.precision == "fp16"
    assert _is_near(source, built, x=_row().astype(np.float16))


def test_a_model_that_quantization_leaves_no_tensor_of_is_built(builder: Builder) -> None:
    source = graph_model("(float[1,8] x) => (float[1,8] y) { y = Identity(x) }")
    built, variant = builder(source, "vitisai-xint8")
    assert variant.inspection is not None
    assert not variant.inspection.layers, "only a node that moves values: no error of its own"
    assert _is_near(source, built, x=_row())


@pytest.mark.parametrize(
    "nodes",
    [
        "i = Constant<value_int=1>() s = SequenceConstruct(x, x) a = SequenceAt(s, i)",
        "i = Constant<value_int=0>() e = SequenceEmpty<dtype=1>() s = SequenceInsert(e, x) "
        "a = SequenceAt(s, i)",
        "o = Optional(x) a = OptionalGetElement(o)",
    ],
)
@pytest.mark.parametrize("profile", ["cpu", "vitisai-xint8"])
def test_sequences_and_optional_values_inside_are_passed_by(
    builder: Builder, nodes: str, profile: str
) -> None:
    source = graph_model(
        f"(float[1,8] x) => (float[1,4] y) {{ {nodes} "
        "h = MatMul(a, w1) r = Relu(h) y = MatMul(r, w2) }",
        _weights(),
    )
    built, variant = builder(source, profile)
    assert variant.inspection is not None
    assert variant.inspection.layers, "the products behind it are looked at"
    assert _is_near(source, built, x=_row())


def test_empty_tensors_are_quantized_with_any_scale(builder: Builder) -> None:
    source = graph_model(
        "(float[1,8] x) => (float[1,4] y, float[0,4] none) {"
        "z = Constant<value_ints=[0]>() a = Concat<axis=1>(x, e) "
        "h = MatMul(a, w1) r = Relu(h) y = MatMul(r, w2) none = Slice(y, z, z, z) }",
        [*_weights(), numpy_helper.from_array(np.zeros((1, 0), np.float32), "e")],
    )
    built, variant = builder(source, "vitisai-xint8")
    assert variant.accuracy.value > 0.5
    assert _is_near(source, built, x=_row())


def test_samples_may_be_empty_where_a_dimension_is_open(builder: Builder) -> None:
    """Examples are the past of a first step, and the sentence of a silent speaker."""
    source = graph_model(
        "(float[1,4,8] x, float[1,P,8] past) => (float[1,4,8] y, float[1,Q,8] kept) {"
        "kept = Concat<axis=1>(past, x) t = Transpose<perm=[0,2,1]>(kept) "
        "s = MatMul(x, t) p = Softmax<axis=-1>(s) y = MatMul(p, kept) }"
    )
    folder = builder.folder / "samples"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(20):
        length = number % 3
        np.savez(
            folder / f"{number}.npz",
            x=rng.standard_normal((1, 4, 8)).astype(np.float32),
            past=rng.standard_normal((1, length, 8)).astype(np.float32),
        )
    built, _ = builder(source, "cpu", calibration=str(folder))
    x = rng.standard_normal((1, 4, 8)).astype(np.float32)
    assert "QuantizeLinear" in {node.op_type for node in built.graph.node}
    assert _is_near(source, built, x=x, past=np.zeros((1, 0, 8), np.float32))


def test_what_reads_or_makes_infinite_values_stays_float(builder: Builder) -> None:
    source = graph_model(
        "(float[1,8] x) => (float[1,4] y) { h = MatMul(x, w1) r = Relu(h) "
        "l = Log(r) e = Exp(l) y = MatMul(e, w2) }",
        _weights(),
    )
    for node, name in zip(source.graph.node, ("first", "relu", "log", "exp", "last"), strict=True):
        node.name = name
    built, variant = builder(source, "vitisai-xint8")
    inputs = {node.name: node.input[0] for node in built.graph.node}
    outputs = {node.name: node.output[0] for node in built.graph.node}
    assert inputs["exp"] == outputs["log"], "no pair stands between the two"
    assert sum(node.op_type == "QuantizeLinear" for node in built.graph.node) >= 3
    assert (
        "2 nodes stay float: they read or make infinite values, which no scale holds (l)."
        in variant.notes
    )
    assert _is_near(source, built, x=_row())


def test_a_model_that_float16_finds_nothing_in_is_refused_as_such(builder: Builder) -> None:
    source = graph_model(
        "(float[1,8] x) => (float[1,4] y, float[1,4] z) { y, z = Split<axis=1,num_outputs=2>(x) }",
        opset=18,
    )
    with pytest.raises(BuildError, match="no node that it could"):
        builder(source, "directml-fp16")


@pytest.mark.parametrize("profile", ["cpu", "qnn-htp-a8w8"])
def test_a_transposed_convolution_of_groups_has_one_scale_for_its_weights(
    builder: Builder, profile: str
) -> None:
    source = graph_model(
        "(float[1,4,8,8] x) => (float[1,6,16,16] y) {"
        "y = ConvTranspose<strides=[2,2],group=2>(x, w, b) }",
        [weight("w", 4, 3, 2, 2), weight("b", 6)],
    )
    built, variant = builder(source, profile)
    scales = {t.name: t.dims for t in built.graph.initializer if t.name.endswith("scale")}
    assert scales
    assert all(len(dims) == 0 for dims in scales.values())
    assert variant.accuracy.value > 0.99


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ("n = RandomNormalLike(x) a = Add(x, n)", "n (RandomNormalLike)"),
        ("n = RandomNormal<shape=[1,8],seed=3.0>() a = Add(x, n)", "n (RandomNormal)"),
        (
            "s = Constant<value_float=0.5>() t = Constant<value=bool {1}>() a = Dropout(x, s, t)",
            "a (Dropout)",
        ),
    ],
)
def test_a_model_that_answers_differently_each_time_is_refused_with_the_node(
    builder: Builder, nodes: str, named: str
) -> None:
    source = graph_model(
        f"(float[1,8] x) => (float[1,4] y) {{ {nodes} "
        "h = MatMul(a, w1) r = Relu(h) y = MatMul(r, w2) }",
        _weights(),
    )
    with pytest.raises(BuildError) as caught:
        builder(source)
    assert "other outputs each time it runs on the same sample" in caught.value.problem
    assert f"random numbers: {named}" in (caught.value.found_in or "")
    assert "model.eval()" in (caught.value.remedy or "")


def test_random_numbers_that_hardly_show_are_left(builder: Builder) -> None:
    source = graph_model(
        "(float[1,8] x) => (float[1,4] y) { n = RandomNormal<shape=[1,8],scale=0.00001>() "
        "a = Add(x, n) h = MatMul(a, w1) r = Relu(h) y = MatMul(r, w2) }",
        _weights(),
    )
    built, variant = builder(source, "qnn-htp")
    assert "RandomNormal" in {node.op_type for node in built.graph.node}
    assert variant.accuracy.value > 0.5


def test_a_split_into_unequal_parts_is_written_for_older_operator_sets(builder: Builder) -> None:
    source = graph_model(
        "(float[1,8] x) => (float[1,2] y, float[1,1] z) {"
        "h = MatMul(x, w) a, y, z = Split<axis=1,num_outputs=3>(h) }",
        [weight("w", 8, 5)],
        opset=18,
    )
    built, _ = builder(source, "vitisai-xint8")
    assert {entry.domain: entry.version for entry in built.opset_import}[""] == 17
    assert _is_near(source, built, x=_row())


@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_reductions_as_pytorch_writes_them_reach_older_operator_sets(
    builder: Builder, domain: str
) -> None:
    """With and without onnx's own converter, which leaves an unsupported attribute."""
    last = "com.microsoft.Gelu(k)" if domain else "Relu(k)"
    source = graph_model(
        "(float[1,8] x) => (float[1,1] y, float[1,16] same) {"
        "axes = Constant<value_ints=[1]>() h = MatMul(x, w1) "
        "same = ReduceMean<noop_with_empty_axes=1>(h) "
        "m = ReduceMax<noop_with_empty_axes=0>(same, axes) "
        f"k = ReduceL2<noop_with_empty_axes=1>(m, axes) y = {last} }}",
        _weights()[:1],
        opset=18,
    )
    source.opset_import.add(domain="com.microsoft", version=1)
    built, _ = builder(source, "vitisai-xint8")
    assert {entry.domain: entry.version for entry in built.opset_import}[""] == 17
    assert _is_near(source, built, x=_row())


def test_what_onnx_runtime_says_is_told_without_its_preamble(builder: Builder) -> None:
    source = graph_model("(float[1,4] x) => (float[1,4] y) { y = com.microsoft.Wave(x) }")
    source.opset_import.add(domain="com.microsoft", version=1)
    with pytest.raises(BuildError) as caught:
        builder(source)
    assert caught.value.problem == (
        "ONNX Runtime cannot load the model: com.microsoft:Wave(-1) is not a registered function/op"
    )
    assert caught.value.remedy == "export it with operators that ONNX Runtime has"


def test_an_output_of_another_type_than_its_node_gives_is_refused(
    builder: Builder, tmp_path: Path
) -> None:
    source = graph_model(f"(float[1,8] x) => (int64[1,4] y) {{ {_TWO_PRODUCTS} }}", _weights())
    with pytest.raises(BuildError) as caught:
        builder(source)
    assert "does not match expected type" in caught.value.problem
    assert str(tmp_path / "model-1.0.0") not in caught.value.problem, "a folder that is gone"
    assert (caught.value.remedy or "").startswith("export it again, or give other sizes")


_ROOT_MEAN_SQUARE = (
    "h = MatMul(x, w1) s = Pow(h, two) m = ReduceMean<axes=[-1]>(s) e = Add(m, epsilon) "
    "q = Sqrt(e) d = Div(h, q) n = Mul(d, scale) y = MatMul(n, w2)"
)


def _fused_by_onnx_runtime(folder: Path, opset: int) -> onnx.ModelProto:
    """Return a model after ONNX Runtime's own transformer fusions."""
    constants = {"two": 2.0, "epsilon": 1e-6, "scale": np.linspace(0.5, 1.5, 16)}
    formula = graph_model(
        f"(float[1,8] x) => (float[1,4] y) {{ {_ROOT_MEAN_SQUARE} }}",
        [
            *_weights(),
            *(
                numpy_helper.from_array(np.asarray(value, np.float32), name)
                for name, value in constants.items()
            ),
        ],
        opset=opset,
    )
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "fused.onnx")
    onnxruntime.InferenceSession(
        formula.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return onnx.load(folder / "fused.onnx")


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("profile", ["cpu", "qnn-htp", "vitisai-a8w8", "fp32"])
def test_simplified_layer_normalization_in_the_standard_domain_is_built(
    builder: Builder, profile: str, opset: int
) -> None:
    source = _fused_by_onnx_runtime(builder.folder, opset)
    normalization = [it for it in source.graph.node if it.op_type == "SimplifiedLayerNormalization"]
    assert [node.domain for node in normalization] == [""]
    built, _ = builder(source, profile)
    assert {entry.domain: entry.version for entry in built.opset_import}[""] == 17
    assert "SimplifiedLayerNormalization" in {node.op_type for node in built.graph.node}
    assert _is_near(source, built, x=_row())


def test_simplified_layer_normalization_of_a_newer_opset_is_lowered(builder: Builder) -> None:
    source = graph_model(
        "(float[1,8] x) => (float[1,4] y) { h = MatMul(x, w1) "
        "n = SimplifiedLayerNormalization<axis=-1,epsilon=0.00001>(h, scale) y = MatMul(n, w2) }",
        [*_weights(), weight("scale", 16)],
        opset=23,
    )
    source.ir_version = 10
    built, _ = builder(source, "vitisai-a8w8")
    assert {entry.domain: entry.version for entry in built.opset_import}[""] == 17
    assert _is_near(source, built, x=_row())


_AMD = ["vitisai-xint8", "vitisai-a8w8", "vitisai-a16w8", "vitisai-bf16"]


@pytest.mark.parametrize("profile", _AMD)
def test_convolutions_for_amd_ship_with_every_attribute_written_out(
    builder: Builder, profile: str
) -> None:
    source = graph_model(
        "(float[1,3,9,9] x) => (float[1,4,8,8] y) { "
        'c = Conv(x, w1) d = Conv<auto_pad="SAME_UPPER",strides=[2,2]>(c, w2) '
        "p = MaxPool<kernel_shape=[2,2]>(d) a = AveragePool<kernel_shape=[2,2]>(p) "
        "y = ConvTranspose<strides=[3,3]>(a, w3) }",
        [
            weight("w1", 4, 3, 3, 3),
            weight("w2", 4, 4, 3, 3),
            weight("w3", 4, 4, 5, 5),
        ],
    )
    built, _ = builder(source, profile)
    given = {
        node.op_type: {entry.name for entry in node.attribute}
        for node in built.graph.node
        if node.op_type in {"Conv", "ConvTranspose", "MaxPool", "AveragePool"}
    }
    shared = {"kernel_shape", "strides", "pads"}
    assert given.keys() == {"Conv", "ConvTranspose", "MaxPool", "AveragePool"}
    assert all(shared <= names for names in given.values())
    assert {"dilations", "group"} <= given["Conv"] & given["ConvTranspose"]
    sample = np.random.default_rng(0).standard_normal((1, 3, 9, 9)).astype(np.float32)
    assert _is_near(source, built, x=sample)


@pytest.mark.parametrize("profile", _AMD)
@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_recurrent_layers_are_kept_off_amd_with_the_source_of_the_rule(
    builder: Builder, profile: str, op_type: str
) -> None:
    gates = 4 if op_type == "LSTM" else 3
    source = graph_model(
        f"(float[5,1,8] x) => (float[5,1,1,4] y) {{ y = {op_type}<hidden_size=4>(x, w, r) }}",
        [weight("w", 1, 4 * gates, 8), weight("r", 1, 4 * gates, 4)],
    )
    with pytest.raises(BuildError) as caught:
        builder(source, profile)
    assert f"({op_type})" in caught.value.problem
    assert "Ryzen AI 1.8" in caught.value.problem, "the source"
    assert "the profile cpu" in (caught.value.remedy or "")
    builder(source, "fp32")
