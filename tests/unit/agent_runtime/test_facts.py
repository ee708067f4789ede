"""Facts: boards laid out as folders, and the machine that the tests run on."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime import facts as facts_module
from edgepack.agent.runtime.facts import hardware_class, read_device_facts
from edgepack.agent.runtime.providers import read_providers
from edgepack.errors import DeviceError
from edgepack.wire.reports import ProviderFacts


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def provider(providers: tuple[ProviderFacts, ...], name: str) -> ProviderFacts:
    (found,) = (one for one in providers if one.name == name)
    return found


def test_a_qualcomm_board_tells_its_soc_and_its_arm_features(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\n"
            "processor\t: 1\nFeatures\t: fp asimd asimddp i8mm\n",
            "proc/device-tree/model": "Qualcomm RB3 Gen 2\0",
            "proc/device-tree/compatible": "qcom,qcs6490-rb3gen2\0qcom,qcs6490\0",
            "sys/devices/soc0/machine": "QCS6490\n",
            "sys/devices/soc0/soc_id": "497\n",
            "sys/module/fastrpc/uevent": "",
            "proc/sys/kernel/osrelease": "6.6.28\n",
            "proc/meminfo": "MemTotal:        8000000 kB\nMemFree: 1 kB\n",
            "etc/os-release": 'NAME="Q"\nPRETTY_NAME="Qualcomm Linux 1.3"\n',
        },
    )
    facts = read_device_facts(root=root, arch="aarch64")
    assert facts.soc == "QCS6490, 497, v68"
    assert facts.cpu_model == "Qualcomm RB3 Gen 2"
    assert facts.cpu_features == ("asimd", "asimddp", "fp", "i8mm")
    assert facts.cpu_count == 2
    assert facts.memory_bytes == 8_192_000_000
    assert facts.os == "Qualcomm Linux 1.3"
    assert facts.drivers["fastrpc"] == "6.6.28"
    assert facts.hardware_class == "aarch64/i8mm/QCS6490"


def test_an_amd_laptop_tells_the_version_of_its_npu_driver_and_firmware(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/cpuinfo": "processor : 0\nmodel name : AMD Ryzen AI 9 HX 370 w/ Radeon 890M\n"
            "flags : fpu avx2 avx512f avx512_vnni\n",
            "sys/module/amdxdna/version": "2.20.0\n",
            "sys/bus/pci/drivers/amdxdna/0000:c5:00.1/fw_version": "1.0.0.63\n",
        },
    )
    facts = read_device_facts(root=root, arch="x86_64")
    assert facts.drivers["amdxdna"] == "2.20.0"
    assert facts.drivers["amdxdna-firmware"] == "1.0.0.63"
    assert facts.hardware_class.startswith("x86_64/avx512_vnni/AMD Ryzen AI 9 HX 370")


def test_a_board_that_tells_nothing_gives_empty_facts_and_no_guess(tmp_path: Path) -> None:
    facts = read_device_facts(root=tmp_path, arch="riscv64")
    assert (facts.cpu_model, facts.cpu_features, facts.cpu_count) == ("", (), 0)
    assert (facts.soc, facts.memory_bytes) == ("", 0)
    assert facts.hardware_class == "riscv64/baseline/unknown"


def test_names_of_processors_are_cut_to_what_tells_them_apart() -> None:
    name = "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz"
    assert hardware_class("x86_64", ("avx512f", "avx512_vnni"), name) == (
        "x86_64/avx512_vnni/Intel Xeon Gold 6338"
    )
    assert hardware_class("x86_64", (), "AMD EPYC 7763 64-Core Processor") == (
        "x86_64/baseline/AMD EPYC 7763"
    )


def test_without_onnxruntime_no_provider_is_available_and_each_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise DeviceError("onnxruntime is not installed", remedy="pip install 'edgepack[cpu]'")

    monkeypatch.setattr(facts_module, "load_runtime", absent)
    facts = read_device_facts(root=tmp_path)
    assert facts.runtime == ""
    assert facts.providers
    for one in facts.providers:
        assert not one.available
        assert one.because == "onnxruntime is not installed: pip install 'edgepack[cpu]'"


def test_this_machine_has_the_cpu_provider_and_a_simulated_qnn() -> None:
    facts = read_device_facts()
    assert provider(facts.providers, "CPUExecutionProvider").available
    qnn = provider(facts.providers, "QNNExecutionProvider")
    assert qnn.available
    assert qnn.devices == ("npu",)
    assert qnn.is_simulator
    assert "simulates npu on x86_64" in qnn.because
    assert facts.drivers["qnn-sdk"]
    assert "AzureExecutionProvider" not in {one.name for one in facts.providers}


def test_a_provider_that_is_not_there_says_what_would_bring_it() -> None:
    vitis = provider(read_device_facts().providers, "VitisAIExecutionProvider")
    assert not vitis.available
    assert vitis.because.endswith("here has no such provider")
    assert "the onnxruntime of AMD's Ryzen AI software" in vitis.brought_by


def test_what_the_settings_forbid_is_said_to_be_so() -> None:
    facts = read_device_facts(ProviderConfig(allow=("CPUExecutionProvider",)))
    assert "not allowed" not in provider(facts.providers, "CPUExecutionProvider").because
    assert "not allowed by this device's settings" in (
        provider(facts.providers, "QNNExecutionProvider").because
    )


class Runtime(ModuleType):
    """An onnxruntime whose plug-ins find devices of some kinds."""

    __version__ = "1.32.0"

    def __init__(self, found: dict[str, tuple[str, ...]]) -> None:
        super().__init__("onnxruntime")
        self._found, self.registered = found, list[tuple[str, str]]()

    def get_available_providers(self) -> list[str]:
        return ["CPUExecutionProvider", *(name for name, _ in self.registered)]

    def register_execution_provider_library(self, name: str, library: str) -> None:
        self.registered.append((name, library))

    def get_ep_devices(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(
                ep_name=name, device=SimpleNamespace(type=SimpleNamespace(name=kind.upper()))
            )
            for name, _ in self.registered
            for kind in self._found.get(name, ())
        ]


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the module of OpenVINO's plug-in, without a package."""
    module = ModuleType("onnxruntime_ep_openvino")
    module.__spec__ = ModuleSpec(module.__name__, None)
    vars(module)["get_library_path"] = lambda: "/plugin.so"
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize(
    ("found", "devices", "because"),
    [
        (("cpu", "npu"), ("npu", "cpu"), "plug-in onnxruntime-ep-openvino offers npu, cpu"),
        ((), (), "plug-in onnxruntime-ep-openvino finds no device here"),
        (("fpga",), (), "plug-in onnxruntime-ep-openvino has no back end for the devices here"),
    ],
)
def test_a_plug_in_offers_the_kinds_of_devices_that_it_finds(
    plugged: None, found: tuple[str, ...], devices: tuple[str, ...], because: str
) -> None:
    runtime = Runtime({"OpenVINOExecutionProvider": found})
    listed = read_providers(runtime, frozenset(), arch="x86_64")
    openvino = provider(listed, "OpenVINOExecutionProvider")
    assert (openvino.devices, openvino.because) == (devices, because)
    assert openvino.available is bool(devices)
    assert not openvino.is_simulator
    assert ("OpenVINOExecutionProvider", "/plugin.so") in runtime.registered


def test_a_plug_in_that_is_not_installed_says_what_brings_it() -> None:
    listed = read_providers(Runtime({}), frozenset(), arch="x86_64")
    for name, package in (
        ("OpenVINOExecutionProvider", "onnxruntime-ep-openvino"),
        ("NvTensorRTRTXExecutionProvider", "onnxruntime-ep-nv-tensorrt-rtx-cu13"),
        ("WebGpuExecutionProvider", "onnxruntime-ep-webgpu"),
    ):
        one = provider(listed, name)
        assert not one.available
        assert f"pip install {package}" in one.because
