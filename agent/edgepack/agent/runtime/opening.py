"""Opening a model on a given execution provider, without silent replacement.

ONNX Runtime is eager to please: a provider that is not there, or that fails, is replaced by
the CPU with a warning at most. A session from here runs on the provider that was asked for, says
which nodes that provider took, or is an error.
"""

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from edgepack.agent.runtime import providers
from edgepack.agent.runtime.fixed_decoder import FixedDecoderSession
from edgepack.agent.runtime.pipelines import open_stages
from edgepack.agent.runtime.placement import RECORD
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.agent.runtime.runtime_words import first_line, remedy_of
from edgepack.agent.runtime.sessions import Session
from edgepack.bundle.manifest import Variant
from edgepack.errors import DeviceError

GRAPH_OPTIMIZATION = "session.graph_optimization_level"
"""Session setting of a variant, not a config entry of ONNX Runtime; values: keys of `_LEVELS`."""

MEMORY_PATTERN = "session.enable_mem_pattern"
"""The other one: `0` or `1`, whether memory is planned once for all inferences of a session."""

_LEVELS = {
    "disable_all": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}

_SWITCH = {"0": False, "1": True}

_ERRORS_ONLY = 3
VERBOSE = 0
FATAL_ONLY = 4
"""For a process whose stderr a person reads: errors are raised all the same."""
"""Log severities of ONNX Runtime; verbose, providers tell why they leave a node."""


class ProviderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a session.

    Attributes:
        provider: ONNX Runtime's name of the provider.
        device: Device kind: `cpu`, `gpu` or `npu`.
        provider_options: Options of the provider.
        session_options: Config entries of the session, `GRAPH_OPTIMIZATION` and `MEMORY_PATTERN`.
    """

    provider: str
    device: str
    provider_options: Mapping[str, str] = {}
    session_options: Mapping[str, str] = {}


ON_CPU = ProviderSettings(provider=CPU_PROVIDER, device="cpu")
"""The CPU provider as ONNX Runtime sets it up."""


def without_spinning(settings: ProviderSettings = ON_CPU) -> ProviderSettings:
    """Return settings for outputs that nobody times: threads that wait for work sleep.

    ONNX Runtime's threads spin otherwise, and take processor time from other work. A profile's own
    choice stays.
    """
    entries = {"session.intra_op.allow_spinning": "0", **settings.session_options}
    return msgspec.structs.replace(settings, session_options=entries)


def settings_of(variant: Variant) -> ProviderSettings:
    """Return the settings of a session that the bundle requests for a variant."""
    return ProviderSettings(
        provider=variant.provider,
        device=variant.device,
        provider_options=variant.provider_options,
        session_options=variant.session_options,
    )


def open_session(bundle_folder: Path, variant: Variant, *, threads: int = 0) -> Session:
    """Open a variant of an unpacked bundle.

    Args:
        bundle_folder: Root of the bundle.
        variant: Variant to open; its options are used unchanged, and facts of this device (the path
            of a back-end library) are filled in.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.

    Raises:
        BundleError: The graphs of a decoder with fixed shapes do not fit each other.
        DeviceError: The provider is not here, refuses the model, or is silently replaced.
    """
    if variant.parts:
        return open_stages(variant, lambda part: open_session(bundle_folder, part, threads=threads))
    folder, settings = bundle_folder / variant.folder, settings_of(variant)
    session = open_model_file(folder / variant.model_file, settings, threads=threads)
    fixed = variant.facts.fixed_decoder
    if fixed is None:
        return session
    step = open_model_file(folder / fixed.step_file, settings, threads=threads)
    return FixedDecoderSession(session, step, fixed)


def open_model_file(
    path: Path,
    settings: ProviderSettings = ON_CPU,
    *,
    threads: int = 0,
    log_severity: int = _ERRORS_ONLY,
) -> Session:
    """Open a model file on a provider.

    Args:
        path: The model; external data and context binaries lie next to the model.
        settings: Provider and options.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.
        log_severity: Least severity of messages to stderr: `VERBOSE`, `FATAL_ONLY`, by default
            errors.

    Raises:
        ValueError: A session option has a value that does not exist.
        DeviceError: The provider is not here, refuses the model, or is silently replaced.
    """
    runtime = providers.load_runtime()
    provider, device = settings.provider, settings.device
    known = providers.known_provider(provider)
    entries = {**RECORD, **known.session_options, **settings.session_options}
    options = _make_options(runtime, entries, threads, log_severity)
    asked: list[Any] | None = None
    if known.plugin is not None and provider not in _built_in_without_plugin(runtime, known):
        filled = fill_in_options(known.plugin, device, settings.provider_options)
        options.add_provider_for_devices(_devices(runtime, known, device), filled)
    else:
        if provider not in runtime.get_available_providers():
            raise DeviceError(
                f"{provider} is not in onnxruntime {runtime.__version__} here",
                remedy=known.brought_by,
            )
        asked = [(provider, dict(settings.provider_options))]
        if provider != CPU_PROVIDER:
            asked.append(CPU_PROVIDER)  # For nodes that it leaves; placement tells which.
    if not path.is_file():
        raise DeviceError(
            "the model file is missing", found_in=str(path), remedy="fetch or export it again"
        )
    try:
        session = runtime.InferenceSession(
            str(path), sess_options=options, providers=asked, enable_fallback=0
        )
    except providers.runtime_errors(runtime) as error:
        raise DeviceError(
            f"{provider} cannot open the model: {first_line(error)}",
            found_in=str(path),
            remedy=remedy_of(str(error)),
        ) from error
    session.disable_fallback()
    if provider not in session.get_providers():
        raise DeviceError(
            f"{provider} was replaced by {', '.join(session.get_providers())}",
            found_in=str(path),
            remedy=known.brought_by,
        )
    return Session(session, provider, runtime)


def _make_options(
    runtime: ModuleType, entries: Mapping[str, str], threads: int, log_severity: int
) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = log_severity
    options.intra_op_num_threads = threads
    for key, value in entries.items():
        if key == GRAPH_OPTIMIZATION:
            if value not in _LEVELS:
                raise ValueError(f"{key} is one of {', '.join(_LEVELS)}, not {value!r}")
            options.graph_optimization_level = getattr(
                runtime.GraphOptimizationLevel, _LEVELS[value]
            )
        elif key == MEMORY_PATTERN:
            if value not in _SWITCH:
                raise ValueError(f"{key} is one of {', '.join(_SWITCH)}, not {value!r}")
            options.enable_mem_pattern = _SWITCH[value]
        else:
            options.add_session_config_entry(key, value)
    return options


def _built_in_without_plugin(runtime: ModuleType, known: providers.Known) -> tuple[str, ...]:
    """Return the runtime's own providers, if the plug-in of this provider is not installed."""
    if known.plugin is not None and providers.is_installed(known.plugin):
        return ()
    return tuple(runtime.get_available_providers())


def _devices(runtime: ModuleType, known: providers.Known, kind: str) -> list[Any]:
    """Return the plug-in's devices of a kind, or all if the plug-in distinguishes no kinds
    (simulators).
    """
    devices = providers.plugin_devices(runtime, known)
    if not devices:
        raise DeviceError(
            f"the plug-in of {known.name} finds no device here", remedy=known.brought_by
        )
    same = [device for device in devices if device.device.type.name.lower() == kind]
    return same or devices


def fill_in_options(
    plugin: providers.Plugin, device: str, options: Mapping[str, str]
) -> dict[str, str]:
    """Return a variant's provider options, completed with facts of this device."""
    filled = dict(options)
    if plugin.backend_options and not any(name in filled for name in plugin.backend_options):
        filled[plugin.backend_options[0]] = providers.backend_path(plugin, device)
    names_a_chip = any(name in filled for name in plugin.chip_options)
    if plugin.simulator is not None and providers.is_simulated(plugin) and not names_a_chip:
        filled |= plugin.simulator.options
    return filled
