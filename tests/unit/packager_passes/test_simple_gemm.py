"""A product with a bias or factors is computed in integers, whatever form they have."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from edgepack.packager.graph.model_files import quiet_options, save_model
from edgepack.packager.passes.optimize import optimize
from edgepack.packager.profiles.pass_settings import Optimize, Quantize
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import (
    constant,
    make_model,
    parsed_model,
    samples_for,
    weight,
)
from tests.unit.packager_passes.passing import context_of, copy_of, difference, kinds_of


def _product(*bias_shape: int) -> onnx.ModelProto:
    bias = numpy_helper.from_array(
        np.random.default_rng(0).normal(size=bias_shape).astype(np.float32), "b"
    )
    return parsed_model(
        "(float[1,16] x) => (float[1,8] z) { [product] h = MatMul(x, w) [shift] y = Add(h, b) "
        "[reads_the_bias_too] scaled = Mul(b, two) [sum] z = Add(y, scaled) }",
        [weight("w", 16, 8), bias, constant("two", 2.0)],
    )


def _fused_kinds(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Operators of a model as ONNX Runtime runs it."""
    save_model(model, folder / "quantized.onnx")
    options = quiet_options()
    options.optimized_model_filepath = str(folder / "fused.onnx")
    onnxruntime.InferenceSession(
        folder / "quantized.onnx", options, providers=["CPUExecutionProvider"]
    )
    return kinds_of(onnx.load(folder / "fused.onnx"))


@pytest.mark.parametrize("bias_shape", [(8,), (1, 8)])
def test_a_product_with_a_bias_is_computed_in_integers_whatever_the_biass_rank(
    bias_shape: tuple[int, ...], tmp_path: Path
) -> None:
    model = _product(*bias_shape)
    after = optimize(copy_of(model), Optimize(), context_of(model, tmp_path)).model
    (gemm,) = [node for node in after.graph.node if node.op_type == "Gemm"]
    (bias,) = [tensor for tensor in after.graph.initializer if tensor.name == gemm.input[2]]
    assert list(bias.dims) == [8]
    assert difference(model, after, tmp_path) < 1e-6, "who else reads the bias reads what it was"

    settings = Quantize(ops="compute", activations="uint8", weights="int8", per_channel=("Gemm",))
    quantizer = StaticCandidateMaker(
        after, settings, samples_for(after, 8), work_dir=tmp_path, progress=silent
    )
    assert "QGemm" in _fused_kinds(quantizer.build(spec("minmax")).model, tmp_path)


@pytest.mark.parametrize("beta", [1.0, 0.5, 0.0])
def test_the_factors_of_a_product_are_computed_into_what_it_is_made_of(
    beta: float, tmp_path: Path
) -> None:
    model = parsed_model(
        "(float[2,4] x) => (float[2,4] y) { "
        f"[scaled] h = Gemm<alpha=-2.0, beta={beta}>(x, w, b) [plain] y = Gemm<transB=1>(h, w) }}",
        [weight("w", 4, 4), weight("b", 4)],
    )
    after = optimize(copy_of(model), Optimize(), context_of(model, tmp_path)).model
    gemms = [node for node in after.graph.node if node.op_type == "Gemm"]
    assert len(gemms) == 2
    given = {(a.name, helper.get_attribute_value(a)) for node in gemms for a in node.attribute}
    assert not {
        (name, value) for name, value in given if name in ("alpha", "beta") and value != 1.0
    }
    assert difference(model, after, tmp_path) < 1e-6, (
        "who else reads the weights reads what they were"
    )


def test_factors_that_are_nearly_alike_scale_the_same_constant_each_by_its_own(
    tmp_path: Path,
) -> None:
    factors = {"h": 1000.0, "y": 1000.0004}
    nodes = [
        helper.make_node("Gemm", ["x", "w"], [name], f"product_{name}", alpha=factor)
        for name, factor in factors.items()
    ]
    model = make_model(
        nodes, {"x": [2, 4]}, {name: [2, 4] for name in factors}, [weight("w", 4, 4)]
    )
    after = optimize(copy_of(model), Optimize(), context_of(model, tmp_path)).model
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in after.graph.initializer}
    (original,) = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    for node in after.graph.node:
        factor = np.float32(factors[node.output[0]])
        np.testing.assert_array_equal(stored[node.input[1]], original * factor)


def test_a_factor_of_what_is_computed_stays(tmp_path: Path) -> None:
    model = parsed_model(
        "(float[4,4] x, float[4,4] z) => (float[4,4] y) { [product] y = Gemm<alpha=0.5>(x, z) }"
    )
    after = optimize(copy_of(model), Optimize(), context_of(model, tmp_path)).model
    assert difference(model, after, tmp_path) < 1e-6
    (gemm,) = after.graph.node
    assert [(a.name, a.f) for a in gemm.attribute if a.name == "alpha"] == [("alpha", 0.5)]
