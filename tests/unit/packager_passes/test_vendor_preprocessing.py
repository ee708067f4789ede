"""What one vendor's hardware has as one operator becomes that operator, and computes the same."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from edgepack.packager.passes.qnn_preprocess import qnn_preprocess
from edgepack.packager.passes.vitisai_preprocess import vitisai_preprocess
from edgepack.packager.profiles.pass_settings import QnnPreprocess, Quantize, VitisAiPreprocess
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import constant, parsed_model, samples_for
from tests.unit.packager_passes.passing import context_of, copy_of, difference, kinds_of

node = helper.make_node


def _reshaped(perm: list[int], inner: list[int], shapes: tuple[list[int], ...]) -> onnx.ModelProto:
    return parsed_model(
        f"(float{shapes[0]} x) => (float{shapes[1]} y) {{ [split] a = Reshape(x, inner) "
        f"[move] b = Transpose<perm={perm}>(a) [join] y = Reshape(b, after) }}",
        [constant("inner", inner, np.int64), constant("after", shapes[1], np.int64)],
    )


_DOWN = ([1, 4, 6, 6], [1, 16, 3, 3])
_UP = ([1, 16, 3, 3], [1, 4, 6, 6])


@pytest.mark.parametrize(
    ("perm", "inner", "shapes", "kind"),
    [
        ([0, 3, 5, 1, 2, 4], [1, 4, 3, 2, 3, 2], _DOWN, "SpaceToDepth"),
        ([0, 3, 4, 1, 5, 2], [1, 2, 2, 4, 3, 3], _UP, "DepthToSpace"),
        ([0, 1, 4, 2, 5, 3], [1, 4, 2, 2, 3, 3], _UP, "DepthToSpace"),
    ],
    ids=["space to depth", "depth to space", "pixel shuffle"],
)
def test_moves_of_pixels_become_one_node(
    tmp_path: Path, perm: list[int], inner: list[int], shapes: tuple[list[int], ...], kind: str
) -> None:
    model = _reshaped(perm, inner, shapes)
    result = qnn_preprocess(copy_of(model), QnnPreprocess(), context_of(model, tmp_path, "Gelu"))
    assert kinds_of(result.model) == [kind]
    assert result.notes == ("1 moves of pixels became SpaceToDepth or DepthToSpace.",)
    assert difference(model, result.model, tmp_path) == 0.0


def test_channels_that_are_ordered_otherwise_stay(tmp_path: Path) -> None:
    model = _reshaped([0, 1, 3, 5, 2, 4], [1, 4, 3, 2, 3, 2], _DOWN)
    result = qnn_preprocess(copy_of(model), QnnPreprocess(), context_of(model, tmp_path, "Gelu"))
    assert kinds_of(result.model) == ["Reshape", "Transpose", "Reshape"]
    assert result.notes == ()


def _normalization(*, is_clipped: bool, epsilon: float = 1e-12) -> onnx.ModelProto:
    between = "[clip] c = Clip(n, epsilon) [expand] e = Expand(c, shape)" if is_clipped else ""
    return parsed_model(
        "(float[2,8] x) => (float[2,8] y) { [norm] n = ReduceL2<axes=[1], keepdims=1>(x) "
        f"{between} [divide] y = Div(x, {'e' if is_clipped else 'n'}) }}",
        [constant("epsilon", epsilon), constant("shape", [2, 8], np.int64)] if is_clipped else [],
    )


@pytest.mark.parametrize("is_clipped", [False, True])
def test_a_division_by_the_length_becomes_one_normalization(
    tmp_path: Path, is_clipped: bool
) -> None:
    model = _normalization(is_clipped=is_clipped)
    result = qnn_preprocess(copy_of(model), QnnPreprocess(), context_of(model, tmp_path, "Gelu"))
    assert kinds_of(result.model) == ["LpNormalization"]
    assert result.notes == ("1 normalizations became LpNormalization.",)
    assert difference(model, result.model, tmp_path) < 1e-6


def test_a_length_that_is_kept_from_small_values_stays(tmp_path: Path) -> None:
    model = _normalization(is_clipped=True, epsilon=0.5)
    result = qnn_preprocess(copy_of(model), QnnPreprocess(), context_of(model, tmp_path, "Gelu"))
    assert kinds_of(result.model) == kinds_of(model)


def test_gelu_of_onnx_runtimes_own_is_quantized_too(tmp_path: Path) -> None:
    model = parsed_model("(float[1,8] x) => (float[1,8] y) { [relu] y = Relu(x) }")
    model.graph.node[0].op_type, model.graph.node[0].domain = "Gelu", "com.microsoft"
    model.opset_import.add(domain="com.microsoft", version=1)
    settings = load_profile("qnn-htp-a8w8").quantize
    assert isinstance(settings, Quantize)
    built = StaticCandidateMaker(
        model, settings, samples_for(model, 4), work_dir=tmp_path, progress=silent
    ).build(spec("minmax"))
    assert built.lowered == ("relu",)


_SWISH = {
    "divided last": "[gate] m = Mul(x, c) [divide] y = Div(m, six)",
    "divided first": "[divide] m = Mul(c, sixth) [gate] y = Mul(m, x)",
}


def _hard_swish(order: str, *, three: float = 3.0) -> onnx.ModelProto:
    return parsed_model(
        "(float[2,8] x) => (float[2,8] y) { [plus] a = Add(x, three) "
        f"[clip] c = Clip(a, zero, six) {_SWISH[order]} }}",
        [
            constant("three", [three]),
            constant("zero", 0.0),
            constant("six", 6.0),
            constant("sixth", 1 / 6),
        ],
    )


@pytest.mark.parametrize("order", _SWISH)
def test_a_hard_swish_becomes_one_node_for_both_vendors(tmp_path: Path, order: str) -> None:
    model = _hard_swish(order)
    for result in (
        qnn_preprocess(copy_of(model), QnnPreprocess(), context_of(model, tmp_path, "Gelu")),
        vitisai_preprocess(
            copy_of(model), VitisAiPreprocess(), context_of(model, tmp_path, "Gelu")
        ),
    ):
        assert kinds_of(result.model) == ["HardSwish"]
        assert result.notes == ("1 HardSwish became one node each.",)
        assert difference(model, result.model, tmp_path) < 1e-6


def test_a_clip_of_something_else_is_no_hard_swish(tmp_path: Path) -> None:
    model = _hard_swish("divided last", three=2.0)
    result = vitisai_preprocess(
        copy_of(model), VitisAiPreprocess(), context_of(model, tmp_path, "Gelu")
    )
    assert kinds_of(result.model) == kinds_of(model)
    assert result.notes == ()


@pytest.mark.parametrize("keeps", [0, 1])
@pytest.mark.parametrize("axes", [[2, 3], [-1, -2]])
def test_a_mean_over_height_and_width_becomes_a_pooling(
    tmp_path: Path, keeps: int, axes: list[int]
) -> None:
    after = "1,4,1,1" if keeps else "1,4"
    model = parsed_model(
        f"(float[1,4,6,6] x) => (float[{after}] y) "
        f"{{ [mean] y = ReduceMean<axes={axes}, keepdims={keeps}>(x) }}"
    )
    result = vitisai_preprocess(
        copy_of(model), VitisAiPreprocess(), context_of(model, tmp_path, "Gelu")
    )
    assert kinds_of(result.model) == ["GlobalAveragePool", *(["Squeeze"] * (1 - keeps))]
    assert result.notes == ("1 ReduceMean over height and width became GlobalAveragePool.",)
    assert difference(model, result.model, tmp_path) < 1e-6


def test_a_mean_over_channels_stays(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[1,4,6,6] x) => (float[1,1,6,6] y) { [mean] y = ReduceMean<axes=[1]>(x) }"
    )
    result = vitisai_preprocess(
        copy_of(model), VitisAiPreprocess(), context_of(model, tmp_path, "Gelu")
    )
    assert kinds_of(result.model) == ["ReduceMean"]
    assert result.notes == ()


def _average(height: int, width: int, kind: str = "GlobalAveragePool") -> onnx.ModelProto:
    how = "" if kind == "GlobalAveragePool" else "<axes=[2,3]>"
    return parsed_model(
        f"(float[1,2,{height},{width}] x) => (float[1,2,1,1] y) {{ [average] y = {kind}{how}(x) }}"
    )


@pytest.mark.parametrize(
    ("height", "width", "kernels"),
    [
        (16, 32, []),
        (40, 20, [[5, 5]]),
        (23, 23, [[1, 23]]),
        (600, 600, [[20, 25], [5, 6]]),
    ],
    ids=["512 values fit", "even parts", "a prime size goes by rows", "two steps"],
)
def test_an_average_over_a_large_map_is_split_into_parts_of_one_size(
    tmp_path: Path, height: int, width: int, kernels: list[list[int]]
) -> None:
    model = _average(height, width)
    result = vitisai_preprocess(
        copy_of(model), VitisAiPreprocess(), context_of(model, tmp_path, "Gelu")
    )
    found = [
        list(next(entry.ints for entry in made.attribute if entry.name == "kernel_shape"))
        for made in result.model.graph.node
        if made.op_type == "AveragePool"
    ]
    assert found == kernels
    assert kinds_of(result.model)[-1] == "GlobalAveragePool"
    left = {value.name: value for value in result.model.graph.value_info}
    rest = left[result.model.graph.node[-1].input[0]] if kernels else model.graph.input[0]
    sizes = [dim.dim_value for dim in rest.type.tensor_type.shape.dim[2:]]
    assert sizes[0] * sizes[1] <= 512
    assert difference(model, result.model, tmp_path) < 1e-4
    assert bool(result.notes) == bool(kernels)


def test_a_mean_over_a_large_map_is_split_too(tmp_path: Path) -> None:
    model = _average(32, 32, "ReduceMean")
    result = vitisai_preprocess(
        copy_of(model), VitisAiPreprocess(), context_of(model, tmp_path, "Gelu")
    )
    assert kinds_of(result.model) == ["AveragePool", "GlobalAveragePool"]
    assert result.notes == (
        "1 ReduceMean over height and width became GlobalAveragePool.",
        "Split into poolings that fit: 1 average over maps of more than 512 values.",
    )
    assert difference(model, result.model, tmp_path) < 1e-4


def test_an_average_that_nothing_divides_stays_and_the_note_names_it(tmp_path: Path) -> None:
    model = _average(1, 521)
    result = vitisai_preprocess(
        copy_of(model), VitisAiPreprocess(), context_of(model, tmp_path, "Gelu")
    )
    assert kinds_of(result.model) == ["GlobalAveragePool"]
    assert result.notes == (
        "Not split: 1 average over maps of more than 512 values, since no size that fits divides "
        "them; the NPU may leave them: average (1 x 521).",
    )
