"""OpenVINO for real, in the environment with onnxruntime-openvino as its `onnxruntime`."""

from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.config import ProbeConfig, ProviderConfig
from edgepack.agent.runtime.facts import read_device_facts
from edgepack.agent.runtime.matching import match_variants
from edgepack.agent.runtime.opening import ProviderSettings, open_model_file, open_session
from edgepack.agent.runtime.probe import probe_variant
from edgepack.bundle.golden import Golden, write_golden
from edgepack.bundle.manifest import GOLDEN_FILE
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import DeviceError
from tests.simulators.manifests import QNN, make_variant
from tests.unit.agent_runtime.examples import make_inputs, make_manifest, save_variant

pytestmark = pytest.mark.openvino

OPENVINO = "OpenVINOExecutionProvider"
VARIANT = make_variant(
    "openvino", provider=OPENVINO, device="cpu", provider_options={"device_type": "CPU"}
)


def test_facts_name_openvino_and_the_kinds_of_hardware_that_are_here() -> None:
    facts = read_device_facts()
    providers = {provider.name: provider for provider in facts.providers}
    assert providers[OPENVINO].available
    assert "cpu" in providers[OPENVINO].devices
    assert not providers[OPENVINO].is_simulator
    assert not providers[QNN].available
    assert "plug-in onnxruntime-qnn is not installed" in providers[QNN].because


def test_openvino_takes_the_whole_model_and_agrees_with_the_cpu_provider(tmp_path: Path) -> None:
    save_variant(tmp_path, VARIANT)
    session = open_session(tmp_path, VARIANT, threads=1)
    assert session.provider == OPENVINO
    assert session.placement.verified
    # Four nodes: ONNX Runtime fused none of them before OpenVINO saw the graph.
    assert (session.placement.taken, session.placement.total) == (4, 4)
    feeds = make_inputs(1)[0]
    on_cpu = open_model_file(tmp_path / VARIANT.folder / VARIANT.model_file)
    assert np.allclose(session.run(feeds)["y"], on_cpu.run(feeds)["y"], atol=1e-3)


def test_a_probe_proves_an_openvino_variant(tmp_path: Path) -> None:
    save_variant(tmp_path, VARIANT)
    on_cpu = open_model_file(tmp_path / VARIANT.folder / VARIANT.model_file)
    inputs = make_inputs(3)
    (tmp_path / GOLDEN_FILE).parent.mkdir()
    golden = Golden(inputs=inputs, outputs=tuple(on_cpu.run(feeds) for feeds in inputs))
    write_golden(tmp_path / GOLDEN_FILE, golden)
    result = probe_variant(tmp_path, VARIANT, config=ProbeConfig(timeout_s=400, runs=5))
    assert result.right, result.because
    assert (result.provider, result.taken) == (OPENVINO, 4)


def test_a_variant_for_the_npu_is_no_candidate_on_a_machine_without_one() -> None:
    variant = make_variant("npu", provider=OPENVINO, device="npu")
    facts = read_device_facts()
    if "npu" in next(one.devices for one in facts.providers if one.name == OPENVINO):
        pytest.skip("this machine has an Intel NPU")
    matches = match_variants(make_manifest(variant), facts, ProviderConfig(), TrustPolicy(keys=()))
    assert f"{OPENVINO} offers " in matches.rejected["npu"]
    assert "the variant is for npu" in matches.rejected["npu"]


def test_a_device_that_openvino_does_not_have_is_an_error_and_not_the_cpu(tmp_path: Path) -> None:
    save_variant(tmp_path, VARIANT)
    with pytest.raises(DeviceError, match=f"{OPENVINO} "):
        open_model_file(
            tmp_path / VARIANT.folder / VARIANT.model_file,
            ProviderSettings(
                provider=OPENVINO, device="npu", provider_options={"device_type": "NPU"}
            ),
        )
