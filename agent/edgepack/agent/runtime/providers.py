"""Execution providers that this device offers, with the reason for each missing provider.

Static facts of each provider are data: see `provider_table.py`.
"""

import importlib
import importlib.metadata
import importlib.util
import platform
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from edgepack.agent.runtime.provider_table import (
    KNOWN,
    NOT_ON_DEVICE,
    Known,
    Plugin,
    known_provider,
)
from edgepack.agent.runtime.quiet_loading import without_log_lines
from edgepack.agent.runtime.runtime_words import first_line
from edgepack.agent.runtime.vendor_telemetry import disable_vendor_telemetry
from edgepack.errors import DeviceError
from edgepack.wire.reports import ProviderFacts

__all__ = [
    "Known",
    "Plugin",
    "backend_path",
    "is_installed",
    "is_simulated",
    "known_provider",
    "load_runtime",
    "plugin_devices",
    "plugin_module",
    "read_providers",
    "read_sdks",
    "runtime_errors",
]

_registering = threading.Lock()
_loading = threading.Lock()


def load_runtime() -> ModuleType:
    """Return the module `onnxruntime`, which an extra brings, its telemetry switched off.

    Several threads may call it at once.

    Raises:
        DeviceError: ONNX Runtime is not installed, or cannot be loaded.
    """
    disable_vendor_telemetry()
    loaded = sys.modules.get("onnxruntime")
    if loaded is not None and hasattr(loaded, "InferenceSession"):
        return importlib.import_module("onnxruntime")  # Another thread may be importing it.
    with _loading:
        importlib.invalidate_caches()  # It may have been installed since this process looked.
        return _import_runtime()


def _import_runtime() -> ModuleType:
    try:
        with without_log_lines() if "onnxruntime" not in sys.modules else nullcontext():
            runtime = importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        raise DeviceError(
            "onnxruntime is not installed", remedy="pip install 'edgepack[cpu]'"
        ) from error
    except (ImportError, OSError) as error:
        raise DeviceError(
            f"onnxruntime cannot be loaded: {error}",
            remedy="reinstall the wheel for this machine and its Python",
        ) from error
    if not hasattr(runtime, "InferenceSession"):  # A folder that an uninstalled wheel left.
        del sys.modules["onnxruntime"]
        raise DeviceError(
            "onnxruntime is not installed whole", remedy="pip install 'edgepack[cpu]'"
        )
    return runtime


def runtime_errors(runtime: ModuleType) -> tuple[type[Exception], ...]:
    """Return the exceptions that ONNX Runtime raises; its native exceptions share no base class."""
    state = importlib.import_module(f"{runtime.__name__}.capi.onnxruntime_pybind11_state")
    native = (value for value in vars(state).values() if isinstance(value, type))
    return (
        *(kind for kind in native if issubclass(kind, Exception)),
        RuntimeError,
        ValueError,
    )


def read_providers(
    runtime: ModuleType | DeviceError, loaded_drivers: frozenset[str], *, arch: str
) -> tuple[ProviderFacts, ...]:
    """List the providers of the runtime and its plug-ins.

    Args:
        runtime: The module `onnxruntime`, or the reason for its absence.
        loaded_drivers: Kernel drivers that are loaded.
        arch: Machine name as in `uname -m`; "" asks this machine.

    Returns:
        An entry for every known provider and every other provider of the runtime.
    """
    if isinstance(runtime, DeviceError):
        because = f"{runtime.problem}: {runtime.remedy}"
        return tuple(
            ProviderFacts(name=known.name, available=False, because=because) for known in KNOWN
        )
    built_in: list[str] = list(runtime.get_available_providers())
    facts = [_judge(known, runtime, built_in, loaded_drivers, arch) for known in KNOWN]
    others = set(built_in) - {known.name for known in KNOWN} - NOT_ON_DEVICE
    facts += [
        ProviderFacts(
            name=name,
            available=True,
            because=f"built into onnxruntime {runtime.__version__}",
            version=runtime.__version__,
        )
        for name in sorted(others)
    ]
    return tuple(facts)


def _judge(
    known: Known,
    runtime: ModuleType,
    built_in: Sequence[str],
    loaded_drivers: frozenset[str],
    arch: str,
) -> ProviderFacts:
    shown = tuple(
        kind
        for kind, drivers in known.kinds.items()
        if not drivers or loaded_drivers.intersection(drivers)
    )
    is_built_in = known.name in built_in  # So is a plug-in, once it was registered.
    if known.plugin is not None and (not is_built_in or is_installed(known.plugin)):
        return _judge_plugin(known, known.plugin, runtime, shown, arch)
    if is_built_in:
        if not shown:
            drivers = sorted({name for names in known.kinds.values() for name in names})
            return ProviderFacts(
                name=known.name,
                available=False,
                because=f"onnxruntime has it, but no hardware shows: none of the kernel drivers "
                f"{', '.join(drivers)} is loaded",
                version=runtime.__version__,
            )
        return ProviderFacts(
            name=known.name,
            available=True,
            because=f"built into onnxruntime {runtime.__version__}",
            version=runtime.__version__,
            devices=shown,
        )
    return ProviderFacts(
        name=known.name,
        available=False,
        because=f"onnxruntime {runtime.__version__} here has no such provider",
        brought_by=known.brought_by,
    )


def why_nothing_runs(providers: Sequence[ProviderFacts], allow: Sequence[str]) -> str:
    """Return why no model can run on this device, as a sentence; "" if a provider is usable.

    Args:
        providers: Providers of the device.
        allow: The providers that the settings allow; empty for all.
    """
    usable = [one.name for one in providers if one.available]
    if not usable:
        because = providers[0].because if providers else "none is known"
        return f"no execution provider is installed, so no model can run ({because})"
    if allow and not set(usable) & set(allow):
        return (
            "the settings allow no execution provider that is installed "
            f"(providers.allow; installed: {', '.join(usable)}), so no model can run: "
            "leave providers.allow out, or install what it names"
        )
    return ""


def is_installed(plugin: Plugin) -> bool:
    """Return True if the plug-in's package is here."""
    return importlib.util.find_spec(plugin.module) is not None


def _judge_plugin(
    known: Known, plugin: Plugin, runtime: ModuleType, shown: tuple[str, ...], arch: str
) -> ProviderFacts:
    try:
        devices = plugin_devices(runtime, known)
    except DeviceError as error:
        because = f"{error.problem}; {error.remedy}" if error.remedy else error.problem
        return ProviderFacts(name=known.name, available=False, because=because)
    version = plugin_version(plugin)
    title = f"plug-in {plugin.distributions[0]} {version}".rstrip()
    if not devices:
        return ProviderFacts(
            name=known.name,
            available=False,
            because=f"{title} finds no device here",
            version=version,
        )
    is_simulator = is_simulated(plugin, arch)
    kinds = shown
    if plugin.simulator is not None and is_simulator:
        kinds = plugin.simulator.kinds
    elif not plugin.backends:
        found = {device.device.type.name.lower() for device in devices}
        kinds = tuple(kind for kind in known.kinds if kind in found)
    there = tuple(kind for kind in kinds if _has_backend(plugin, kind))
    if not there:
        because = f"{title} has no back end for {', '.join(kinds) or 'the devices here'}"
    elif is_simulator:
        because = f"{title} simulates {', '.join(there)} on {arch}"
    else:
        because = f"{title} offers {', '.join(there)}"
    return ProviderFacts(
        name=known.name,
        available=bool(there),
        because=because,
        version=version,
        devices=there,
        is_simulator=is_simulator,
    )


def plugin_version(plugin: Plugin) -> str:
    """Return the version of the plug-in's installed package; "" if its package is not known."""
    for name in plugin.distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return ""


def _has_backend(plugin: Plugin, kind: str) -> bool:
    """Check whether the library of a device kind is here; a plug-in without any needs none."""
    return not plugin.backends or Path(backend_path(plugin, kind)).exists()


def plugin_devices(runtime: ModuleType, known: Known) -> list[Any]:
    """Register a provider's plug-in, once in a process, and list the plug-in's devices.

    Returns:
        ONNX Runtime's `OrtEpDevice` objects.

    Raises:
        DeviceError: The plug-in is not installed, or ONNX Runtime rejects the plug-in.
    """
    plugin = known.plugin
    if plugin is None:
        raise ValueError(f"{known.name} is not a plug-in")
    with _registering:
        registered = _devices_of(runtime, known.name)
        if registered:
            return registered
        library = plugin_module(plugin).get_library_path()
        if not hasattr(runtime, "register_execution_provider_library"):
            raise DeviceError(
                f"onnxruntime {runtime.__version__} takes no plug-ins", remedy=known.brought_by
            )
        try:
            runtime.register_execution_provider_library(known.name, library)
        except runtime_errors(runtime) as error:
            raise DeviceError(
                f"onnxruntime {runtime.__version__} refuses plug-in {plugin.distributions[0]}: "
                f"{first_line(error)}",
                found_in=library,
                remedy=f"{known.brought_by}, whose versions fit each other",
            ) from error
        return _devices_of(runtime, known.name)


def _devices_of(runtime: ModuleType, name: str) -> list[Any]:
    if not hasattr(runtime, "get_ep_devices"):
        return []
    return [device for device in runtime.get_ep_devices() if device.ep_name == name]


def plugin_module(plugin: Plugin) -> ModuleType:
    """Return the plug-in's own module; raise `DeviceError` if not installed."""
    try:
        return importlib.import_module(plugin.module)
    except ImportError as error:
        raise DeviceError(
            f"plug-in {plugin.distributions[0]} is not installed",
            remedy=next(one.brought_by for one in KNOWN if one.plugin == plugin),
        ) from error


def backend_path(plugin: Plugin, kind: str) -> str:
    """Return path of the back-end library of a device kind.

    Raises:
        DeviceError: The plug-in has no back end of that kind, or is not installed.
    """
    if kind not in plugin.backends:
        raise DeviceError(
            f"plug-in {plugin.distributions[0]} has no back end for device {kind!r}",
            remedy=f"it has: {', '.join(plugin.backends)}",
        )
    return str(getattr(plugin_module(plugin), plugin.backends[kind])())


def is_simulated(plugin: Plugin, arch: str = "") -> bool:
    """Return True if the plug-in's back ends simulate their hardware on a machine.

    Args:
        plugin: The plug-in.
        arch: Machine name as in `uname -m`; "" asks this machine.
    """
    native = plugin.simulator.native_arch if plugin.simulator is not None else None
    return native is not None and (arch or platform.machine()) not in native


def read_sdks() -> dict[str, str]:
    """Return versions of the vendors' SDKs inside installed plug-ins, by name."""
    versions = {}
    for plugin in (known.plugin for known in KNOWN if known.plugin is not None):
        try:
            module = plugin_module(plugin)
        except DeviceError:
            continue  # Its absence is told by `read_providers`.
        version = getattr(getattr(module, "build_and_package_info", None), plugin.sdk, "")
        if version:
            versions[plugin.sdk_name] = str(version)
    return versions
