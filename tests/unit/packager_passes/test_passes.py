"""Each pass keeps what the model computes, and says why when it cannot work."""

import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes import runner
from edgepack.packager.passes.clamp_mask import clamp_mask
from edgepack.packager.passes.clean import clean
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.passes.fix_shapes import fix_shapes
from edgepack.packager.passes.optimize import optimize
from edgepack.packager.passes.runner import run_float_passes
from edgepack.packager.profiles.pass_settings import ClampMask, Clean, FixShapes, Optimize
from edgepack.packager.profiles.reading import load_profile, resolve_profile
from edgepack.packager.progress import silent
from tests.unit.packager_passes.models import (
    attention,
    cnn,
    constant,
    make_model,
    parsed_model,
    samples_for,
    weight,
)
from tests.unit.packager_passes.passing import context_of, copy_of, difference


def _untidy(opset: int = 13) -> onnx.ModelProto:
    """What exporters write: a weight in a Constant node, empty and equal names, metadata."""
    node = helper.make_node
    model = make_model(
        [
            node("Constant", [], ["w"], value=weight("w", 4, 4)),
            node("MatMul", ["x", "w"], ["h"], name="same"),
            node("Identity", ["h"], ["i"], name="same"),
            node("Relu", ["i"], ["y"], name="same"),
        ],
        {"x": [1, 4], "unused": [1]},
        {"y": [1, 4]},
        [weight("unused", 1)],
        opset=opset,
    )
    model.metadata_props.add(key="labels", value="a,b")
    return model


def test_clean_turns_an_untidy_export_into_plain_onnx(tmp_path: Path) -> None:
    before = _untidy()
    after = clean(copy_of(before), Clean(opset=17), context_of(before, tmp_path)).model
    assert [node.op_type for node in after.graph.node] == ["MatMul", "Relu"]
    assert len({node.name for node in after.graph.node}) == 2
    assert [tensor.name for tensor in after.graph.initializer] == ["w"]
    assert [value.name for value in after.graph.input] == ["x"]
    assert opset_of(after) == 17
    assert not after.metadata_props
    before.graph.input.pop()
    assert difference(before, after, tmp_path) < 1e-6


def test_clean_drops_what_nothing_reads_and_keeps_what_bodies_read(tmp_path: Path) -> None:
    body = "body () => (float[1,4] inner) { inner = Relu(h) }"
    model = parsed_model(
        "(float[1,4] x) => (float[1,4] y) { [read_in_a_body] h = Tanh(x) "
        "[unread] unread = Relu(x) [nor_this] nor_this = Sigmoid(unread) "
        f"[if] y = If<then_branch = {body}, else_branch = {body}>(yes) }}",
        [constant("yes", True, np.bool_)],
    )
    after = clean(copy_of(model), Clean(opset=17), context_of(model, tmp_path)).model
    assert [entry.name for entry in after.graph.node] == ["read_in_a_body", "if"]
    assert difference(model, after, tmp_path) < 1e-6


def _model_of_2018(opset: int) -> onnx.ModelProto:
    """Limits, paddings, slices and enlargements as they stood before opset 11.

    Initializers are inputs too, as IR version 3 wanted it.
    """
    scales: list[onnx.TensorProto] = []
    if opset < 9:
        enlarged = 'Upsample<mode="linear", scales=[1.0,1.0,2.0,2.0]>(c)'
    else:
        enlarged = f'{"Upsample" if opset < 10 else "Resize"}<mode="linear">(c, scales)'
        scales = [constant("scales", [1, 1, 2, 2])]
    cut = "Slice<axes=[2], starts=[1], ends=[-2]>(p)"
    if opset >= 10:
        cut = "Slice(p, starts, ends, axes)"
        bounds = {"starts": [1], "ends": [-2], "axes": [2]}
        scales += [constant(name, value, np.int64) for name, value in bounds.items()]
    model = parsed_model(
        "(float[1,3,4,5] x) => (float[1,4,7,12] y) { c = Clip<min=-0.5, max=0.75>(x) "
        f'u = {enlarged} p = Pad<mode="constant", value=0.25, pads=[0,0,1,1,0,0,1,1]>(u) '
        f"s = {cut} y = Conv<pads=[1,1,1,1]>(s, w) }}",
        [weight("w", 4, 3, 3, 3), *scales],
        opset=opset,
    )
    model.ir_version = 3
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in model.graph.initializer
    )
    return model


@pytest.mark.parametrize("opset", [7, 8, 9, 10])
def test_operator_sets_before_11_are_raised_and_keep_what_they_compute(
    tmp_path: Path, opset: int
) -> None:
    before = _model_of_2018(opset)
    after = clean(copy_of(before), Clean(opset=17), context_of(before, tmp_path)).model
    assert opset_of(after) == 17
    assert [node.op_type for node in after.graph.node] == ["Clip", "Resize", "Pad", "Slice", "Conv"]
    assert [value.name for value in after.graph.input] == ["x"]
    assert difference(before, after, tmp_path) < 1e-6


def test_clean_refuses_an_opset_that_cannot_be_converted(tmp_path: Path) -> None:
    model = parsed_model(
        f"(float[1] x) => (float[1] y) {{ axes = Cast<to={onnx.TensorProto.INT64}>(x) "
        "[mean] y = ReduceMean(x, axes) }",
        opset=18,
    )
    with pytest.raises(BuildError) as caught:
        clean(model, Clean(opset=17), context_of(model, tmp_path, opset_min=17, opset_max=17))
    assert "needs opset 17…17, the model has 18" in str(caught.value)
    assert "the axes of ReduceMean are computed (node 'mean')" in str(caught.value)
    assert "export the model with opset 17" in str(caught.value)


def test_open_dimensions_are_refused_with_the_option_that_fixes_them(tmp_path: Path) -> None:
    model = cnn(batch="batch")
    with pytest.raises(BuildError) as caught:
        fix_shapes(model, FixShapes(), context_of(model, tmp_path, static_shapes=True))
    assert "leaves open images: batch" in str(caught.value)
    assert "try: --shape images=…" in str(caught.value)


def test_optimize_merges_batch_normalization_into_the_convolution(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[1,2,4,4] x) => (float[1,3,2,2] y) { [conv] c = Conv(x, w) "
        "[bn] y = BatchNormalization(c, s, b, m, v) }",
        [
            weight("w", 3, 2, 3, 3),
            *(weight(name, 3, seed=1) for name in "sbm"),
            numpy_helper.from_array(np.full(3, 0.5, dtype=np.float32), "v"),
        ],
    )
    after = optimize(copy_of(model), Optimize(), context_of(model, tmp_path)).model
    assert [node.op_type for node in after.graph.node] == ["Conv"]
    assert difference(model, after, tmp_path) < 1e-4


def test_constants_that_optimization_makes_do_not_clash_with_those_of_a_later_session(
    tmp_path: Path,
) -> None:
    model = attention(mask_value=-64.0)
    once = optimize(copy_of(model), Optimize(), context_of(model, tmp_path)).model
    had = {tensor.name for tensor in model.graph.initializer}
    for tensor in once.graph.initializer:
        assert tensor.name in had or tensor.name.startswith("edgepack/")


def test_a_mask_becomes_the_smallest_value_that_keeps_the_outputs(tmp_path: Path) -> None:
    before = attention()
    result = clamp_mask(copy_of(before), ClampMask(), context_of(before, tmp_path))
    (mask,) = [tensor for tensor in result.model.graph.initializer if tensor.name == "mask"]
    assert numpy_helper.to_array(mask).min() == -32.0
    assert result.notes == (
        "Mask constants (mask) became -32, with which the float outputs stay the same.",
    )
    assert difference(before, result.model, tmp_path) < 1e-4


def test_a_large_negative_constant_that_is_no_mask_stays(tmp_path: Path) -> None:
    bias = numpy_helper.from_array(np.full(4, -2e4, dtype=np.float32), "bias")
    model = parsed_model("(float[1,4] x) => (float[1,4] y) { [add] y = Add(x, bias) }", [bias])
    result = clamp_mask(copy_of(model), ClampMask(), context_of(model, tmp_path))
    assert numpy_helper.to_array(result.model.graph.initializer[0]).min() == -2e4
    assert "stay: the outputs change without them" in result.notes[0]


def test_an_infinite_constant_that_is_no_mask_stays_beside_one_that_is(tmp_path: Path) -> None:
    before = attention(mask_value=-np.inf)
    before.graph.node.extend(
        [
            helper.make_node("Add", ["mixed", "floor"], ["floored"], name="add_floor"),
            helper.make_node("IsInf", ["floored"], ["where"], name="is_infinite"),
            helper.make_node("Where", ["where", "mixed", "floored"], ["y"], name="choose"),
        ]
    )
    before.graph.initializer.append(constant("floor", [-np.inf, 0.0, 1.0, 2.0]))
    before.graph.output[0].name = "y"
    result = clamp_mask(copy_of(before), ClampMask(), context_of(before, tmp_path))
    least = {
        tensor.name: numpy_helper.to_array(tensor).min()
        for tensor in result.model.graph.initializer
        if tensor.name in ("mask", "floor")
    }
    assert least == {"mask": -32.0, "floor": -np.inf}
    assert result.notes == (
        "Mask constants (mask) became -32, with which the float outputs stay the same.",
        "Large negative constants (floor) stay: the outputs change without them.",
    )


def test_all_passes_of_the_shipped_profiles_keep_what_a_model_computes(tmp_path: Path) -> None:
    for name in ("fp32", "cpu", "qnn-htp", "vitisai-xint8"):
        profile = load_profile(name)
        for model in (cnn(), attention(), _untidy()):
            before = copy_of(model)
            context = PassContext(
                profile_name=name,
                limits=profile.limits,
                samples=samples_for(model, 4),
                work_dir=tmp_path,
            )
            after = run_float_passes(model, profile, context, silent).model
            assert model == before, "the source model is not changed"
            assert difference(before, after, tmp_path) < 1e-3


def test_operators_that_a_provider_cannot_run_are_refused_by_name(tmp_path: Path) -> None:
    profile = resolve_profile("qnn-htp", {"limits": {"forbidden_ops": ["Sigmoid"]}})
    model = cnn()
    context = PassContext(
        profile_name="qnn-htp",
        limits=profile.limits,
        samples=samples_for(model, 2),
        work_dir=tmp_path,
    )
    with pytest.raises(BuildError, match=r"cannot run 1 node: sigmoid \(Sigmoid\)"):
        run_float_passes(model, profile, context, silent)


def _swallow_a_relu(model: onnx.ModelProto, _settings: object, _context: object) -> PassResult:
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type = "Identity"
    return PassResult(model=model)


def _lose_an_input(model: onnx.ModelProto, _settings: object, _context: object) -> PassResult:
    model.graph.node[-1].input[0] = "nobody gives it"
    return PassResult(model=model)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (_swallow_a_relu, r"^the pass infer_shapes changed the outputs by .*% of their size"),
        (_lose_an_input, r"^after the pass infer_shapes ONNX Runtime cannot run the model"),
    ],
)
def test_of_several_passes_the_one_that_breaks_the_model_is_named(
    broken: Any, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runner._PASSES, "infer_shapes", broken)
    profile, model = load_profile("cpu"), _untidy()
    context = PassContext(
        profile_name="cpu", limits=profile.limits, samples=samples_for(model, 2), work_dir=tmp_path
    )
    with pytest.raises(BuildError, match=problem) as caught:
        run_float_passes(model, profile, context, silent)
    assert caught.value.found_in == "pass infer_shapes"


def test_shape_inference_survives_weights_in_constant_nodes(tmp_path: Path) -> None:
    model = _untidy(opset=11)
    profile = load_profile("cpu")
    context = PassContext(
        profile_name="cpu", limits=profile.limits, samples=samples_for(model, 2), work_dir=tmp_path
    )
    after = run_float_passes(model, profile, context, silent).model
    known = {value.name for value in after.graph.value_info}
    inner = {name for node in after.graph.node for name in node.output} - {"y"}
    assert inner <= known
    assert all(
        value.type.tensor_type.elem_type == TensorProto.FLOAT for value in after.graph.value_info
    )


@pytest.mark.parametrize("given", [TensorProto.FLOAT, TensorProto.INT64])
def test_what_follows_a_scaler_of_scikit_learn_has_a_type_and_a_shape(given: int) -> None:
    nodes = [
        helper.make_node(
            "Scaler", ["x"], ["scaled"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0]
        ),
        helper.make_node("Normalizer", ["scaled"], ["unit"], domain="ai.onnx.ml", norm="L2"),
        helper.make_node("MatMul", ["unit", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", given, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [weight("w", 4, 3)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    add_shapes(model)
    found = {
        value.name: (
            value.type.tensor_type.elem_type,
            [dim.dim_value for dim in value.type.tensor_type.shape.dim],
        )
        for value in (*model.graph.value_info, *model.graph.output)
    }
    assert found["scaled"] == found["unit"] == (TensorProto.FLOAT, [1, 4])
    assert found["y"] == (TensorProto.FLOAT, [1, 3])


def test_a_disk_that_is_too_full_for_the_optimized_model_is_no_mistake_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _untidy()
    full = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    (tmp_path / "optimize" / "after.onnx").mkdir(parents=True)  # it cannot be written
    with pytest.raises(OSError, match="No space left") as caught:
        optimize(model, Optimize(level="O1"), context_of(model, tmp_path))
    assert caught.value.errno == errno.ENOSPC
