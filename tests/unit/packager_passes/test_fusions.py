"""Chains that exporters write become one operator, which computes the same."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edgepack.errors import BuildError, ProfileError
from edgepack.packager.passes.fuse_transformer import fuse_transformer
from edgepack.packager.passes.optimize import optimize
from edgepack.packager.profiles.pass_settings import FuseTransformer, Optimize
from edgepack.packager.profiles.reading import resolve_profile
from tests.unit.packager_passes.models import constant, parsed_model, weight
from tests.unit.packager_passes.passing import context_of, copy_of, difference, kinds_of

node = helper.make_node


_LAST = {
    "half last": "[product] product = Mul(x, plus) [gelu] y = Mul(product, half)",
    "half first": "[product] product = Mul(plus, half) [gelu] y = Mul(x, product)",
    "half beside": "[product] product = Mul(x, half) [gelu] y = Mul(product, plus)",
}


def _gelu(order: str, *, opset: int, one: float = 1.0) -> onnx.ModelProto:
    return parsed_model(
        "(float[4,8] x) => (float[4,8] y) { [scaled] scaled = Div(x, root) "
        f"[erf] erf = Erf(scaled) [plus] plus = Add(erf, one) {_LAST[order]} }}",
        [constant("root", 2.0**0.5), constant("one", one), constant("half", 0.5)],
        opset=opset,
    )


@pytest.mark.parametrize("order", _LAST)
@pytest.mark.parametrize(("opset", "domain"), [(20, ""), (17, "com.microsoft")])
def test_a_gelu_in_any_order_of_its_factors_becomes_one_node(
    tmp_path: Path, order: str, opset: int, domain: str
) -> None:
    model = _gelu(order, opset=opset)
    result = fuse_transformer(
        copy_of(model), FuseTransformer(), context_of(model, tmp_path, "Gelu")
    )
    assert [(entry.op_type, entry.domain) for entry in result.model.graph.node] == [
        ("Gelu", domain)
    ]
    assert result.notes == ("1 GELU became one node each.",)
    assert difference(model, result.model, tmp_path) < 1e-4


def test_a_gelu_that_the_provider_cannot_read_stays_and_the_note_says_so(tmp_path: Path) -> None:
    model = _gelu("half last", opset=17)
    result = fuse_transformer(copy_of(model), FuseTransformer(), context_of(model, tmp_path))
    assert kinds_of(result.model) == kinds_of(model)
    assert result.notes == (
        "1 GELU stay as exported: Gelu needs opset 20, or a provider that reads ONNX Runtime's "
        "own.",
    )


def test_a_formula_that_only_looks_like_gelu_stays(tmp_path: Path) -> None:
    model = _gelu("half last", opset=20, one=2.0)
    result = fuse_transformer(copy_of(model), FuseTransformer(), context_of(model, tmp_path))
    assert kinds_of(result.model) == kinds_of(model)
    assert result.notes == ()


_CUBES = {
    "factor first": "[kx] kx = Mul(k, x) [kxx] kxx = Mul(x, kx) [cube] cube = Mul(x, kxx)",
    "power": "[power] xxx = Pow(x, three) [cube] cube = Mul(xxx, k)",
}


def _fast_gelu(order: str, cube: str, *, k: float = 0.044715) -> onnx.ModelProto:
    return parsed_model(
        f"(float[4,8] x) => (float[4,8] y) {{ {_CUBES[cube]} [sum] sum = Add(cube, x) "
        "[scaled] scaled = Mul(sum, root) [tanh] erf = Tanh(scaled) "
        f"[plus] plus = Add(one, erf) {_LAST[order]} }}",
        [
            constant("root", (2.0 / np.pi) ** 0.5),
            constant("one", 1.0),
            constant("half", 0.5),
            constant("three", 3.0),
            constant("k", k),
        ],
    )


@pytest.mark.parametrize("order", _LAST)
@pytest.mark.parametrize("cube", _CUBES)
def test_a_gelu_by_its_tanh_formula_becomes_one_node(tmp_path: Path, order: str, cube: str) -> None:
    model = _fast_gelu(order, cube)
    settings = FuseTransformer(ops=("FastGelu",))
    result = fuse_transformer(copy_of(model), settings, context_of(model, tmp_path))
    assert [(entry.op_type, entry.domain) for entry in result.model.graph.node] == [
        ("FastGelu", "com.microsoft")
    ]
    assert result.notes == ("1 GELU by the tanh formula became one node each.",)
    assert difference(model, result.model, tmp_path) < 1e-6


@pytest.mark.parametrize("what", ["another factor", "read elsewhere", "16-bit floats"])
def test_what_is_no_such_gelu_stays(tmp_path: Path, what: str) -> None:
    model = _fast_gelu("half last", "power", k=0.05 if what == "another factor" else 0.044715)
    if what == "read elsewhere":
        model.graph.output.append(helper.make_tensor_value_info("cube", 1, [4, 8]))
    if what == "16-bit floats":
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
        for tensor in model.graph.initializer:
            halves = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(halves, tensor.name))
    settings = FuseTransformer(ops=("FastGelu",))
    result = fuse_transformer(copy_of(model), settings, context_of(model, tmp_path))
    assert kinds_of(result.model) == kinds_of(model)
    assert result.notes == ()


def _layer_norm(*, square: str = "Pow", axis: int = -1, opset: int = 17) -> onnx.ModelProto:
    squared = "d, two" if square == "Pow" else "d, d"
    return parsed_model(
        f"(float[2,8,8] x) => (float[2,8,8] y) {{ [mean] m = ReduceMean<axes=[{axis}]>(x) "
        f"[centered] d = Sub(x, m) [square] s = {square}({squared}) "
        f"[variance] v = ReduceMean<axes=[{axis}]>(s) [epsilon] e = Add(v, epsilon) "
        "[root] r = Sqrt(e) [divided] n = Div(d, r) [scaled] g = Mul(n, scale) "
        "[shifted] y = Add(g, bias) }",
        [
            constant("two", 2.0),
            constant("epsilon", 1e-5),
            weight("scale", 8),
            weight("bias", 8, seed=1),
        ],
        opset=opset,
    )


@pytest.mark.parametrize("square", ["Pow", "Mul"])
def test_a_layer_normalization_becomes_one_node(tmp_path: Path, square: str) -> None:
    model = _layer_norm(square=square, axis=2)
    result = fuse_transformer(copy_of(model), FuseTransformer(), context_of(model, tmp_path))
    assert kinds_of(result.model) == ["LayerNormalization"]
    assert result.notes == ("1 layer normalization became one node each.",)
    assert difference(model, result.model, tmp_path) < 1e-5


def test_a_normalization_over_another_axis_stays(tmp_path: Path) -> None:
    model = _layer_norm(axis=1)
    result = fuse_transformer(copy_of(model), FuseTransformer(), context_of(model, tmp_path))
    assert len(result.model.graph.node) == 9


def test_a_layer_normalization_before_opset_17_stays_and_the_note_says_so(tmp_path: Path) -> None:
    model = _layer_norm(opset=13)
    result = fuse_transformer(copy_of(model), FuseTransformer(), context_of(model, tmp_path))
    assert len(result.model.graph.node) == 9
    assert "Left as exported: 1 layer normalization;" in result.notes[0]


def _residual_blocks() -> onnx.ModelProto:
    """What ONNX Runtime makes SkipLayerNormalization and FusedMatMul of."""
    return parsed_model(
        "(float[2,8,8] x) => (float[2,8,8] y) { [product] a = MatMul(x, w) "
        "[residual] sum = Add(a, x) [norm] h = LayerNormalization<axis=-1>(sum, scale, bias) "
        "[scaled] scaled = Div(h, root) [erf] erf = Erf(scaled) [plus] plus = Add(erf, one) "
        "[twice] twice = Mul(h, plus) [gelu] y = Mul(twice, half) }",
        [
            weight("w", 8, 8),
            numpy_helper.from_array(np.ones(8, dtype=np.float32), "scale"),
            weight("bias", 8, seed=1),
            constant("root", 2.0**0.5),
            constant("one", 1.0),
            constant("half", 0.5),
        ],
    )


@pytest.mark.parametrize(
    ("level", "made"), [("O1", set()), ("O2", {"Gelu"}), ("O3", {"FastGelu"}), ("O4", {"FastGelu"})]
)
def test_each_level_of_optimization_makes_what_it_says(
    tmp_path: Path, level: str, made: set[str]
) -> None:
    model = _residual_blocks()
    settings = Optimize(level=level)  # type: ignore[arg-type]
    result = optimize(copy_of(model), settings, context_of(model, tmp_path, "*"))
    own = {n.op_type for n in result.model.graph.node if n.domain == "com.microsoft"}
    assert own & {"Gelu", "FastGelu"} == made
    assert difference(model, result.model, tmp_path) < 5e-3
    known = {value.name for value in result.model.graph.value_info} | {"y"}
    assert {name for n in result.model.graph.node for name in n.output if name} <= known
    assert bool(result.notes) == bool(made)


def test_skip_layer_normalization_is_made_where_it_is_asked_for(tmp_path: Path) -> None:
    model = _residual_blocks()
    result = fuse_transformer(
        copy_of(model),
        FuseTransformer(ops=("SkipLayerNormalization",)),
        context_of(model, tmp_path, "SkipLayerNormalization"),
    )
    assert "SkipLayerNormalization" in kinds_of(result.model)
    assert result.notes == ("ONNX Runtime's transformer optimizer made 1 SkipLayerNormalization.",)
    assert difference(model, result.model, tmp_path) < 1e-5


def test_an_operator_that_the_provider_does_not_read_is_refused(tmp_path: Path) -> None:
    model = _residual_blocks()
    with pytest.raises(BuildError) as caught:
        optimize(copy_of(model), Optimize(level="O2"), context_of(model, tmp_path, "FusedMatMul"))
    assert "which profile 'mine' does not read" in str(caught.value)
    assert "level = 'O1'" in str(caught.value)


@pytest.mark.parametrize(
    ("base", "changes", "problem"),
    [
        ("vitisai-bf16", {"pass": [{"name": "optimize", "level": "O2"}]}, "does not read all"),
        ("cpu", {"pass": [{"name": "optimize", "level": "O2"}]}, "have no integer form"),
        ("fp32", {"pass": [{"name": "optimize", "level": "O4"}]}, "O4 is for GPUs"),
        (
            "vitisai-bf16",
            {"pass": [{"name": "fuse_transformer", "ops": ["Attention"]}]},
            "Attention is ONNX Runtime's own",
        ),
    ],
)
def test_a_level_that_the_target_cannot_use_contradicts_the_profile(
    base: str, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(ProfileError, match=problem):
        resolve_profile(base, changes)
