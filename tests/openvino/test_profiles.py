"""OpenVINO's profile for CPUs on graphs that targets are particular about, on OpenVINO itself."""

from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.runtime.opening import open_model_file
from edgepack.packager.graph.model_files import save_model
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.runner import run_float_passes
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.runtime.evaluator import profile_settings
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.target_models import TARGETS

pytestmark = pytest.mark.openvino


@pytest.mark.parametrize("target", ["residual_cnn", "transformer", "decoder"])
def test_openvino_takes_every_node_and_computes_what_the_cpu_provider_does(
    target: str, tmp_path: Path
) -> None:
    profile, given = load_profile("openvino-cpu"), TARGETS[target]()
    context = PassContext(
        profile_name=profile.name, limits=profile.limits, samples=given.samples, work_dir=tmp_path
    )
    prepared = run_float_passes(given.model, profile, context, silent).model
    settings = profile.quantize
    assert settings is not None
    quantizer = StaticCandidateMaker(
        prepared, settings, given.samples, work_dir=tmp_path, progress=silent
    )
    for name, model in (("float", given.model), ("int8", quantizer.build(spec("minmax")).model)):
        save_model(model, tmp_path / f"{name}.onnx")
    session = open_model_file(
        tmp_path / "int8.onnx",
        profile_settings(profile),
    )
    assert session.placement.taken == session.placement.total
    feeds = given.samples.read(0)
    want, got = (
        one.run(feeds)["y"].astype(np.float64)
        for one in (open_model_file(tmp_path / "float.onnx"), session)
    )
    assert np.linalg.norm(got - want) < 0.1 * np.linalg.norm(want)
