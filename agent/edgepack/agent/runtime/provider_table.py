"""Table of execution providers, a row for each provider.

A row has the kinds of hardware, the kernel drivers that show such hardware, the plug-in that
carries the provider, and the package that installs it. A new provider is a new row.
"""

from collections.abc import Mapping

import msgspec

CPU_PROVIDER = "CPUExecutionProvider"


class Simulator(msgspec.Struct, frozen=True, kw_only=True):
    """Back ends of a plug-in that simulate their hardware on other machines.

    Attributes:
        native_arch: Machines on which the back ends drive hardware.
        kinds: Device kinds that are simulated elsewhere.
        options: Provider options of a simulated session where the variant names no chip.
        is_serial: It computes on a single thread, and other threads wait busily.
    """

    native_arch: tuple[str, ...]
    kinds: tuple[str, ...]
    options: Mapping[str, str]
    is_serial: bool


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """A provider in a wheel of its own, registered with ONNX Runtime at run time.

    A plug-in shares an environment with `onnxruntime`.

    Attributes:
        distributions: Its package; where several carry it, the advised one first.
        module: The module that knows where its libraries are.
        backends: By device kind, the function of `module` that names the back-end library.
        backend_options: Provider options that name a back end; where a variant sets none, the
            first gets the path of the library on this device.
        chip_options: Provider options that name a chip.
        simulator: How the back ends simulate hardware; None if they do not.
        sdk: Attribute of `module.build_and_package_info` with the version of the vendor's SDK.
        sdk_name: Name of that SDK among a device's drivers.
    """

    distributions: tuple[str, ...]
    module: str
    backends: Mapping[str, str] = {}
    backend_options: tuple[str, ...] = ()
    chip_options: tuple[str, ...] = ()
    simulator: Simulator | None = None
    sdk: str = ""
    sdk_name: str = ""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a provider in the table.

    Attributes:
        name: ONNX Runtime's name.
        brought_by: Package that installs the provider.
        kinds: Device kinds of the provider, each with the kernel drivers that show the hardware;
            without drivers, the kind exists on every device with the provider.
        plugin: The provider's wheel, if the provider is a plug-in.
        session_options: The provider's default session settings.
    """

    name: str
    brought_by: str
    kinds: Mapping[str, tuple[str, ...]]
    plugin: Plugin | None = None
    session_options: Mapping[str, str] = msgspec.field(default_factory=dict)


KNOWN = (
    Known(
        name="QNNExecutionProvider",
        brought_by="pip install 'edgepack[qnn]'",
        kinds={"npu": (), "gpu": ()},
        plugin=Plugin(
            distributions=("onnxruntime-qnn",),
            module="onnxruntime_qnn",
            backends={"npu": "get_qnn_htp_path", "gpu": "get_qnn_gpu_path"},
            backend_options=("backend_path", "backend_type"),
            chip_options=("htp_arch", "soc_model"),
            simulator=Simulator(
                native_arch=("aarch64", "arm64"),
                kinds=("npu",),
                # Without an architecture the simulator's 16-bit outputs vary from run to run;
                # without a SoC it assumes too little memory for models with an LSTM (error 1002).
                options={"htp_arch": "73", "soc_model": "60"},
                is_serial=True,
            ),
            sdk="qnn_version",
            sdk_name="qnn-sdk",
        ),
    ),
    Known(
        name="VitisAIExecutionProvider",
        brought_by="the onnxruntime of AMD's Ryzen AI software, which is not on PyPI",
        kinds={"npu": ("amdxdna",)},
    ),
    Known(
        name="OpenVINOExecutionProvider",
        # The plug-in exists for x86-64 alone, and finds no device on the processors of others.
        brought_by="pip install onnxruntime-ep-openvino on Intel's processors, elsewhere "
        "'edgepack[openvino]' in an environment without onnxruntime",
        kinds={"npu": ("intel_vpu",), "gpu": ("i915", "xe"), "cpu": ()},
        plugin=Plugin(distributions=("onnxruntime-ep-openvino",), module="onnxruntime_ep_openvino"),
        # OpenVINO fuses from the plain graph; ONNX Runtime's fusions hide it (OpenVINO EP docs).
        session_options={"session.graph_optimization_level": "disable_all"},
    ),
    Known(
        name="TensorrtExecutionProvider",
        brought_by="pip install onnxruntime-gpu, and NVIDIA's TensorRT",
        kinds={"gpu": ("nvidia", "nvgpu")},
    ),
    Known(
        name="CUDAExecutionProvider",
        brought_by="pip install onnxruntime-gpu, and NVIDIA's CUDA and cuDNN",
        kinds={"gpu": ("nvidia", "nvgpu")},
    ),
    Known(
        name="NvTensorRTRTXExecutionProvider",
        brought_by="pip install onnxruntime-ep-nv-tensorrt-rtx-cu13, and NVIDIA's driver",
        kinds={"gpu": ("nvidia", "nvgpu")},
        plugin=Plugin(
            distributions=(
                "onnxruntime-ep-nv-tensorrt-rtx-cu13",
                "onnxruntime-ep-nv-tensorrt-rtx-cu12",
            ),
            module="onnxruntime_ep_nv_tensorrt_rtx",
        ),
    ),
    Known(
        name="WebGpuExecutionProvider",
        brought_by="pip install onnxruntime-ep-webgpu",
        kinds={"gpu": ()},
        plugin=Plugin(distributions=("onnxruntime-ep-webgpu",), module="onnxruntime_ep_webgpu"),
    ),
    Known(
        name="CoreMLExecutionProvider",
        brought_by="onnxruntime on macOS",
        kinds={"npu": (), "gpu": (), "cpu": ()},
    ),
    Known(
        name="DmlExecutionProvider",
        brought_by="pip install onnxruntime-directml on Windows",
        kinds={"gpu": (), "npu": ()},
    ),
    Known(name=CPU_PROVIDER, brought_by="pip install 'edgepack[cpu]'", kinds={"cpu": ()}),
)

NOT_ON_DEVICE = frozenset({"AzureExecutionProvider"})
"""Providers in the stock wheels that run nothing on the device itself."""


def known_provider(name: str) -> Known:
    """Return a provider's row; for an unknown provider a row with only its name."""
    for known in KNOWN:
        if known.name == name:
            return known
    return Known(name=name, brought_by=f"a build of onnxruntime with {name}", kinds={})
