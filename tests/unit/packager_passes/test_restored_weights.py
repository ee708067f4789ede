"""A quantized node that is computed in float all the same is found."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgepack.packager.graph.model_files import save_model
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.runtime.restored_weights import nodes_with_restored_weights
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import parsed_model, samples_for, weight


def _gemm(*bias_shape: int) -> onnx.ModelProto:
    bias = numpy_helper.from_array(np.linspace(-1, 1, 8, dtype=np.float32), "b")
    bias.dims[:] = bias_shape
    return parsed_model(
        "(float[1,16] x) => (float[1,8] y) { [product] y = Gemm(x, w, b) }",
        [weight("w", 16, 8), bias],
    )


@pytest.mark.parametrize(("bias_shape", "expected"), [((8,), ()), ((1, 8), ("product",))])
def test_a_product_that_has_no_integer_form_is_named_and_no_file_stays(
    bias_shape: tuple[int, ...], expected: tuple[str, ...], tmp_path: Path
) -> None:
    settings = Quantize(ops="compute", activations="uint8", weights="int8")
    model = _gemm(*bias_shape)
    quantizer = StaticCandidateMaker(
        model, settings, samples_for(model, 8), work_dir=tmp_path / "work", progress=silent
    )
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(quantizer.build(spec("minmax")).model, folder / "model.onnx")
    assert nodes_with_restored_weights(folder / "model.onnx") == expected
    assert [file.name for file in folder.iterdir()] == ["model.onnx"]
