"""Qualcomm's profiles on graphs that its NPU is particular about, on the HTP simulator."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.agent.runtime.opening import ProviderSettings, open_model_file
from edgepack.agent.runtime.providers import read_sdks
from edgepack.packager.gates.compatibility import check_compatibility
from edgepack.packager.graph.model_files import save_model
from edgepack.packager.passes.compile import compile_context
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.runner import run_float_passes
from edgepack.packager.profiles.chips import find_chip
from edgepack.packager.profiles.reading import list_profiles, load_profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.runtime.evaluator import open_plain, profile_settings
from edgepack.packager.tensors.sequence import Samples, SampleSplit
from tests.integration.test_quantize_qnn import DIGITS, part
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import samples_for
from tests.unit.packager_passes.preparing import prepare
from tests.unit.packager_passes.target_models import TARGETS
from tests.unit.packager_passes.test_provider_trial import (
    left_float,
    relative_error,
    uneven_convolutions,
)

QNN = "QNNExecutionProvider"
CHIPS = [name for name in list_profiles() if load_profile(name).compile.enabled]


def _quantized(profile_name: str, target: str, folder: Path) -> tuple[Path, Samples]:
    profile, given = load_profile(profile_name), TARGETS[target]()
    context = PassContext(
        profile_name=profile_name, limits=profile.limits, samples=given.samples, work_dir=folder
    )
    prepared = run_float_passes(given.model, profile, context, silent).model
    settings = profile.quantize
    assert settings is not None
    quantizer = StaticCandidateMaker(
        prepared, settings, given.samples, work_dir=folder, progress=silent
    )
    path = folder / "model.onnx"
    save_model(quantizer.build(spec("minmax")).model, path)
    return path, given.samples


@pytest.mark.parametrize("target", ["residual_cnn", "transformer", "decoder"])
@pytest.mark.parametrize("profile", ["qnn-htp", "qnn-htp-a8w8"])
def test_the_simulated_npu_takes_all_but_erf_and_computes_what_the_cpu_does(
    profile: str, target: str, tmp_path: Path
) -> None:
    path, samples = _quantized(profile, target, tmp_path)
    session = open_model_file(path, ProviderSettings(provider=QNN, device="npu"))
    assert set(session.placement.left) <= {"QuantizeLinear", "DequantizeLinear", "Erf"}
    feeds = samples.read(0)
    want, got = (one.run(feeds)["y"].astype(np.float64) for one in (open_model_file(path), session))
    assert np.linalg.norm(got - want) < 0.1 * np.linalg.norm(want)


def test_a_convolution_left_float_is_float_on_the_simulated_npu(tmp_path: Path) -> None:
    path = left_float(tmp_path)
    profile = load_profile("qnn-htp")
    session = open_model_file(path, profile_settings(profile))
    assert set(session.placement.left) == {"QuantizeLinear", "DequantizeLinear"}
    feeds = samples_for(uneven_convolutions(), 1, seed=1).read(0)
    want, got = open_plain(path)(feeds)["y"], session.run(feeds)["y"]
    assert relative_error(got, want) < 0.02


@pytest.mark.parametrize("profile", CHIPS)
def test_every_profile_for_one_chip_compiles_for_it(profile: str, tmp_path: Path) -> None:
    path, samples = _quantized(profile, "residual_cnn", tmp_path)
    settings = load_profile(profile)
    compiled = compile_context(
        path,
        tmp_path / "compiled",
        samples.read(0),
        settings.compile,
        settings.provider,
        settings.limits,
    )
    chip = find_chip(soc_model=settings.compile.soc_model, htp_arch=settings.compile.htp_arch)
    assert chip.soc in settings.device.soc
    assert compiled.compiled_for == f"v{settings.compile.htp_arch} ({chip.soc})"
    assert compiled.provider_options == dict(settings.provider.options)
    sdk = read_sdks()["qnn-sdk"]
    assert compiled.required_sdks == {"qnn-sdk": f">={sdk},<{int(sdk.partition('.')[0]) + 1}"}
    model = onnx.load(compiled.folder / compiled.model_file, load_external_data=False)
    assert [n.op_type for n in model.graph.node].count("EPContext") == 1
    assert check_compatibility(settings, model) is None


def test_the_profile_of_ones_own_that_the_documentation_shows_is_built_and_runs(
    tmp_path: Path,
) -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "how-to" / "profile.md").read_text(encoding="utf-8")
    example = re.search(r"```toml\n(\[profile\].*?)```", page, re.DOTALL)
    assert example is not None
    path = tmp_path / "camera-npu.toml"
    path.write_text(example[1], encoding="utf-8")
    variant = prepare(
        DIGITS,
        load_profile(str(path)),
        SampleSplit(calibration=part(0, 30), search=part(30, 15), held_out=part(45, 20)),
        tmp_path,
    )
    assert variant.profile == "camera-npu"
    assert variant.requires.soc == ("QCS6490",)
    assert variant.provider_options["htp_arch"] == "68"
    assert variant.placement.verified
    model = onnx.load(variant.folder / variant.model_file)
    types = {t.data_type for t in model.graph.initializer if t.name.endswith("/zero_point")}
    assert onnx.TensorProto.UINT16 not in types, "the example asks for 8-bit activations"
