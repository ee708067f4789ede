"""Facts of this device: processor, SoC, memory, drivers, runtime, providers.

Every fact is read again each time, from the kernel's files. The root of the file system is passed
in, so that a test can lay out any board as a folder.

    python -m edgepack.agent.runtime.facts   (`DeviceFacts` on stdout, a line of JSON, for a parent)
"""

import importlib.metadata
import platform
import re
from pathlib import Path
from types import ModuleType

import msgspec

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.child import redirect_stdout
from edgepack.agent.runtime.providers import load_runtime, read_providers, read_sdks
from edgepack.errors import DeviceError
from edgepack.wire.reports import DeviceFacts

MODULE_DRIVERS = (
    "amdxdna",
    "intel_vpu",
    "i915",
    "xe",
    "fastrpc",
    "adsprpc",
    "msm",
    "kgsl",
    "nvidia",
    "nvgpu",
    "ethosu",
    "rknpu",
)
"""Kernel modules that drive accelerators; each is a driver that requirements may name."""

FIRMWARE_FILES = {
    "amdxdna-firmware": "sys/bus/pci/drivers/amdxdna/*/fw_version",
    "intel_vpu-firmware": "sys/bus/pci/drivers/intel_vpu/*/fw_version",
}
"""Where the kernel tells the version of an accelerator's firmware."""

HEXAGON = {
    "sm8350": "v68",
    "sm7325": "v68",
    "qcs6490": "v68",
    "qcm6490": "v68",
    "sm8450": "v69",
    "sm8550": "v73",
    "qcs8550": "v73",
    "qcs9100": "v73",
    "sc8380xp": "v73",
    "x1e80100": "v73",
    "sm8650": "v75",
    "sm8750": "v79",
    "sm8850": "v81",
}
"""Version of the Hexagon processor by SoC, which profiles may ask for like a SoC's name."""

INSTRUCTION_SETS = (
    "avx512_vnni",
    "avx_vnni",
    "avx512f",
    "avx2",
    "i8mm",
    "asimddp",
    "asimd",
)
"""CPU features that tell how fast and how exactly integers are multiplied, best first."""

_NOISE = re.compile(r"\(R\)|\(TM\)|\bCPU\b|\bProcessor\b|\b\d+-Core\b|with Radeon.*|@.*", re.I)


def read_device_facts(
    config: ProviderConfig | None = None, *, root: Path = Path("/"), arch: str = ""
) -> DeviceFacts:
    """Read the facts of this device.

    Args:
        config: The device's provider settings; forbidden providers are marked.
        root: Root of the file system to read.
        arch: Machine name as in `uname -m`; "" asks this machine.

    Returns:
        The facts; an unreadable fact is empty or 0, never guessed.
    """
    try:
        runtime: ModuleType | DeviceError = load_runtime()
    except DeviceError as error:
        runtime = error  # `read_providers` says so for every provider.
    facts = describe_device(runtime, root=root, arch=arch)
    return facts if config is None else mark_forbidden(facts, config)


def describe_device(
    runtime: ModuleType | DeviceError, *, root: Path = Path("/"), arch: str = ""
) -> DeviceFacts:
    """Return the facts of this device with a runtime; see `read_device_facts`.

    Args:
        runtime: The module `onnxruntime`, or the reason for its absence.
        root, arch: See `read_device_facts`.
    """
    arch = arch or platform.machine()
    cpu_model, features, count = _read_cpu(root)
    soc = _read_soc(root)
    return DeviceFacts(
        arch=arch,
        cpu_model=cpu_model,
        cpu_count=count,
        cpu_features=features,
        memory_bytes=_read_memory(root),
        os=_read_os(root),
        soc=soc,
        python=platform.python_version(),
        agent_version=importlib.metadata.version("edgepack"),
        runtime=runtime.__version__ if isinstance(runtime, ModuleType) else "",
        providers=read_providers(runtime, frozenset(_loaded_modules(root)), arch=arch),
        drivers=read_drivers(root) | read_sdks(),
        hardware_class=hardware_class(arch, features, soc.split(", ")[0] or cpu_model),
    )


def mark_forbidden(facts: DeviceFacts, config: ProviderConfig) -> DeviceFacts:
    """Return facts in which providers are marked that the device's settings forbid."""
    if not config.allow:
        return facts
    providers = tuple(
        provider
        if provider.name in config.allow
        else msgspec.structs.replace(
            provider, because=f"{provider.because}; not allowed by this device's settings"
        )
        for provider in facts.providers
    )
    return msgspec.structs.replace(facts, providers=providers)


def hardware_class(arch: str, features: tuple[str, ...], name: str) -> str:
    """Name the properties that devices must share for a comparison of latencies.

    Returns:
        Architecture, best integer instruction set and SoC or processor model, e.g.
        `x86_64/avx512_vnni/Intel Xeon Gold 6338`.
    """
    best = next((feature for feature in INSTRUCTION_SETS if feature in features), "baseline")
    short = " ".join(_NOISE.sub(" ", name).replace("/", " ").split())
    return f"{arch}/{best}/{short or 'unknown'}"


def _text(path: Path) -> str:
    """Return the content of a kernel file, or "" if the file is missing or unreadable."""
    try:
        return path.read_bytes().replace(b"\0", b"\n").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _read_cpu(root: Path) -> tuple[str, tuple[str, ...], int]:
    """Return model, feature flags (sorted) and number of processors from `/proc/cpuinfo`."""
    model, features, count = "", "", 0
    for line in _text(root / "proc/cpuinfo").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "processor":
            count += 1
        elif key in ("model name", "Model", "Hardware"):
            model = model or value
        elif key in ("flags", "Features"):
            features = features or value
    if not model:
        model = _text(root / "proc/device-tree/model")
    return model, tuple(sorted(features.split())), count


def _read_soc(root: Path) -> str:
    """Return the names of the SoC, separated by ", ": machine, number, device tree's name, NPU
    version.
    """
    soc0 = root / "sys/devices/soc0"
    names = [_text(soc0 / name) for name in ("machine", "soc_id")]
    compatible = _text(root / "proc/device-tree/compatible").splitlines()
    if compatible:
        # From the board to the chip: the last is the most general, "qcom,qcs6490".
        names.append(compatible[-1].rpartition(",")[2])
    names.append(next((HEXAGON[name.lower()] for name in names if name.lower() in HEXAGON), ""))
    unlike: list[str] = []
    for name in filter(None, names):
        if name.lower() not in (known.lower() for known in unlike):
            unlike.append(name)
    return ", ".join(unlike)


def _read_memory(root: Path) -> int:
    match = re.search(r"^MemTotal:\s*(\d+) kB", _text(root / "proc/meminfo"), re.M)
    return int(match[1]) * 1024 if match else 0


def _read_os(root: Path) -> str:
    text = _text(root / "etc/os-release") or _text(root / "usr/lib/os-release")
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', text, re.M)
    return match[1] if match else platform.system()


def _loaded_modules(root: Path) -> tuple[str, ...]:
    """Return the `MODULE_DRIVERS` that are loaded or built into the kernel."""
    places = ("sys/module", "sys/bus/pci/drivers", "sys/bus/platform/drivers")
    return tuple(
        name for name in MODULE_DRIVERS if any((root / place / name).is_dir() for place in places)
    )


def read_drivers(root: Path = Path("/")) -> dict[str, str]:
    """Return versions by driver or firmware name; a driver of the kernel's own has the kernel's."""
    modules, kernel = _loaded_modules(root), _text(root / "proc/sys/kernel/osrelease")
    drivers = {"linux": kernel} if kernel else {}
    for name in modules:
        drivers[name] = _text(root / "sys/module" / name / "version") or kernel
    for name, pattern in FIRMWARE_FILES.items():
        versions = sorted({_text(path) for path in root.glob(pattern)} - {""})
        if versions:
            drivers[name] = versions[0]  # With several chips, the oldest decides.
    return drivers


def main() -> None:
    """Answer a question of the parent about this environment. For the child."""
    with redirect_stdout() as answer:
        answer.write(msgspec.json.encode(read_device_facts()) + b"\n")


if __name__ == "__main__":
    main()
