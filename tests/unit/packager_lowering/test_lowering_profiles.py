"""Shipped profiles that lower by other passes than quantize, and what contradicts itself there."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto

from edgepack.errors import ProfileError
from edgepack.packager.profiles.reading import load_profile, resolve_profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.candidate_makers import maker_for
from edgepack.packager.quantization.contract import CandidateSpec
from edgepack.packager.runtime.model_run import ModelRunner
from tests.unit.packager_passes.models import attention, samples_for

HALF = ("tensorrt-fp16", "coreml-fp16", "directml-fp16", "openvino-gpu")


def _built(name: str, folder: Path) -> onnx.ModelProto:
    profile = load_profile(name)
    assert profile.lowering is not None
    model = attention(mask_value=-64.0)
    samples = samples_for(model, 4)
    make = maker_for(profile.lowering)
    maker = make(model, profile.lowering, samples, work_dir=folder, progress=silent)
    built = maker.build(CandidateSpec(method=maker.methods[0])).model
    ModelRunner(built, folder / "built.onnx").run(samples.read(0))
    return built


@pytest.mark.parametrize("name", HALF)
def test_16_bit_profiles_leave_no_32_bit_weight(name: str, tmp_path: Path) -> None:
    built = _built(name, tmp_path)
    kinds = {tensor.data_type for tensor in built.graph.initializer}
    assert TensorProto.FLOAT16 in kinds
    assert TensorProto.FLOAT not in kinds
    assert load_profile(name).about.precision == "fp16"


def test_the_4_bit_profile_tries_all_three_methods_and_any_cpu_may_run_it() -> None:
    profile = load_profile("cpu-int4")
    lowering: Any = profile.lowering
    assert lowering.methods == ("rtn", "hqq", "gptq")
    assert (lowering.bits, profile.device.arch, profile.device.cpu_features) == (4, (), ())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ([{"name": "quantize_weights", "symmetric": True}], "hqq moves zero points"),
        ([{"name": "quantize_weights", "methods": []}], "no way to round is named"),
        ([{"name": "quantize_weights", "max_float_share": 1.5}], "max_float_share must be <= 1.0"),
        ([{"name": "float16"}], "quantize_weights and float16 both lower the precision"),
        ([{"name": "clamp_mask"}], "a pass follows quantize_weights"),
    ],
)
def test_contradictions_are_refused_with_their_reason(
    changes: list[dict[str, Any]], problem: str
) -> None:
    with pytest.raises(ProfileError, match=problem):
        resolve_profile("cpu-int4", {"pass": changes})


def test_activations_beyond_16_bits_cannot_be_allowed() -> None:
    with pytest.raises(ProfileError, match=r"activation_max must be <= 65504\.0"):
        resolve_profile("directml-fp16", {"pass": [{"name": "float16", "activation_max": 1e6}]})
