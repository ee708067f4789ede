"""A bias that broadcasts does not keep a product from being computed in integers."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from edgepack.packager.graph.model_files import quiet_options, save_model
from edgepack.packager.passes.optimize import optimize
from edgepack.packager.profile.pass_settings import Optimize, Quantize
from edgepack.packager.progress import silent
from edgepack.packager.quantization.candidate import Quantizer
from tests.unit.packager_passes.models import constant, make_model, samples_for, weight
from tests.unit.packager_passes.passing import context_of, copy_of, difference, kinds_of


def _product(*bias_shape: int) -> onnx.ModelProto:
    bias = numpy_helper.from_array(
        np.random.default_rng(0).normal(size=bias_shape).astype(np.float32), "b"
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Add", ["h", "b"], ["y"], name="shift"),
        helper.make_node("Mul", ["b", "two"], ["scaled"], name="reads_the_bias_too"),
        helper.make_node("Add", ["y", "scaled"], ["z"], name="sum"),
    ]
    return make_model(
        nodes, {"x": [1, 16]}, {"z": [1, 8]}, [weight("w", 16, 8), bias, constant("two", 2.0)]
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
    quantizer = Quantizer(
        after, settings, samples_for(after, 8), work_dir=tmp_path, progress=silent
    )
    assert "QGemm" in _fused_kinds(quantizer.build("minmax").model, tmp_path)
