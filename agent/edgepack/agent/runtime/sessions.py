"""Opening a model on one execution provider, and on no other behind one's back.

ONNX Runtime is eager to please: a provider that is not there, or that fails, is replaced by
the CPU with a warning at most. A session from here runs on the provider that was asked for, says
which nodes that provider took, or is an error.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from edgepack.agent.runtime import providers
from edgepack.agent.runtime.placement import RECORD, LeftNode, read_left_nodes, read_placement
from edgepack.bundle.manifest import Placement, Variant
from edgepack.errors import DeviceError

Tensor = npt.NDArray[np.generic]

CPU_PROVIDER = "CPUExecutionProvider"

GRAPH_OPTIMIZATION = "session.graph_optimization_level"
"""The one session setting of a variant that is no config entry of ONNX Runtime's; its values are
the keys of `_LEVELS`."""

_LEVELS = {
    "disable_all": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}

_ERRORS_ONLY = 3
VERBOSE = 0
"""Log severities of ONNX Runtime; verbose, providers tell why they leave a node."""

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(int16)": "int16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(uint16)": "uint16",
    "tensor(uint32)": "uint32",
    "tensor(uint64)": "uint64",
    "tensor(bool)": "bool",
}

_REMEDIES = (
    (r"IR version|opset", "update onnxruntime on this device, or build for its version"),
    (r"1100|context|Ctx", "build without a precompiled context, or with one for this chip and SDK"),
    (r"doesn't exist|No such file|not found|External data", "fetch the variant's files again"),
    (r"memory|alloc", "use a smaller variant, or free memory"),
)
"""What to try by what ONNX Runtime complains of; the first that fits is said."""


@dataclass(frozen=True, kw_only=True)
class SessionTensor:
    """An input or output of a session.

    Attributes:
        name: Its name.
        dtype: numpy's name of its element type.
        shape: A size, or the name of a free dimension ("" when it has none), per axis.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class Session:
    """A model, loaded on its provider and ready to run; safe to use from several threads.

    Attributes:
        provider: The provider that runs it.
        inputs, outputs: Its tensors, in the model's order.
        placement: How many nodes the provider took.
        left_nodes: Those that it did not take.
    """

    def __init__(self, inference_session: Any, provider: str, runtime: ModuleType) -> None:
        self._session = inference_session
        self._errors = providers.runtime_errors(runtime)
        self.provider = provider
        self.inputs = _tensors(inference_session.get_inputs())
        self.outputs = _tensors(inference_session.get_outputs())
        self.placement: Placement = read_placement(inference_session, provider)
        self.left_nodes: tuple[LeftNode, ...] = read_left_nodes(inference_session, provider)

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Runs one inference.

        Args:
            feeds: A tensor for every input, of its dtype and shape.

        Returns:
            A tensor for every output, by name.

        Raises:
            ValueError: The feeds do not fit the inputs, or the session is closed.
            DeviceError: The provider failed.
        """
        session = self._session
        if session is None:
            raise ValueError("the session is closed")
        check_feeds(self.inputs, feeds)
        names = [output.name for output in self.outputs]
        try:
            return dict(zip(names, session.run(names, dict(feeds)), strict=True))
        except self._errors as error:
            raise DeviceError(
                f"{self.provider} failed to run the model: {_first_line(error)}",
                remedy=_remedy(str(error)),
            ) from error

    def run_timed(self, feeds: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        """Runs one inference; see `run`.

        Returns:
            Its outputs, and how long it took, milliseconds.
        """
        started = time.perf_counter()
        outputs = self.run(feeds)
        return outputs, (time.perf_counter() - started) * 1000

    def close(self) -> None:
        """Frees the session once its running inferences are done."""
        self._session = None


def open_session(bundle_folder: Path, variant: Variant, *, threads: int = 0) -> Session:
    """Opens a variant of an unpacked bundle.

    Args:
        bundle_folder: Root of the bundle.
        variant: Which variant; its options are used as they are, what only this device knows
            (the path of a back-end library) is filled in.
        threads: Threads within an operator; 0 leaves it to ONNX Runtime.

    Raises:
        DeviceError: The provider is not here, refuses the model, or is silently replaced.
    """
    return open_model_file(
        bundle_folder / variant.folder / variant.model_file,
        provider=variant.provider,
        device=variant.device,
        provider_options=variant.provider_options,
        session_options=variant.session_options,
        threads=threads,
    )


def open_model_file(
    path: Path,
    *,
    provider: str = CPU_PROVIDER,
    device: str = "cpu",
    provider_options: Mapping[str, str] | None = None,
    session_options: Mapping[str, str] | None = None,
    threads: int = 0,
    log_severity: int = _ERRORS_ONLY,
) -> Session:
    """Opens a model file on one provider.

    Args:
        path: The model; external data and context binaries lie beside it.
        provider: ONNX Runtime's name of the provider.
        device: Device kind: `cpu`, `gpu` or `npu`.
        provider_options: Options of the provider.
        session_options: Config entries of the session, and `GRAPH_OPTIMIZATION`.
        threads: Threads within an operator; 0 leaves it to ONNX Runtime.
        log_severity: What ONNX Runtime writes to stderr: `VERBOSE`, or by default errors.

    Raises:
        ValueError: A session option has a value that does not exist.
        DeviceError: The provider is not here, refuses the model, or is silently replaced.
    """
    runtime = providers.load_runtime()
    known = providers.known_provider(provider)
    settings = {**RECORD, **known.session_options, **(session_options or {})}
    options = _make_options(runtime, settings, threads, log_severity)
    asked: list[Any] | None = None
    if known.plugin is not None and provider not in _built_in_without_plugin(runtime, known):
        filled = _fill_in(known.plugin, device, provider_options or {})
        options.add_provider_for_devices(_devices(runtime, known, device), filled)
    else:
        if provider not in runtime.get_available_providers():
            raise DeviceError(
                f"{provider} is not in onnxruntime {runtime.__version__} here",
                remedy=known.brought_by,
            )
        asked = [(provider, dict(provider_options or {}))]
        if provider != CPU_PROVIDER:
            asked.append(CPU_PROVIDER)  # For nodes that it leaves; placement tells which.
    if not path.is_file():
        raise DeviceError(
            "the model file is missing", found_in=str(path), remedy="fetch the variant's files"
        )
    try:
        session = runtime.InferenceSession(
            str(path), sess_options=options, providers=asked, enable_fallback=0
        )
    except providers.runtime_errors(runtime) as error:
        raise DeviceError(
            f"{provider} cannot open the model: {_first_line(error)}",
            found_in=str(path),
            remedy=_remedy(str(error)),
        ) from error
    session.disable_fallback()
    if provider not in session.get_providers():
        raise DeviceError(
            f"{provider} was replaced by {', '.join(session.get_providers())}",
            found_in=str(path),
            remedy=f"see what this device has: edgepack-agent providers; {known.brought_by}",
        )
    return Session(session, provider, runtime)


def check_feeds(inputs: tuple[SessionTensor, ...], feeds: Mapping[str, Tensor]) -> None:
    """Judges feeds before ONNX Runtime does, whose words would not name all that is wrong.

    Raises:
        ValueError: A name, dtype or shape does not fit.
    """
    names = [tensor.name for tensor in inputs]
    if set(feeds) != set(names):
        raise ValueError(
            f"the model's inputs are {', '.join(names)}; given: {', '.join(feeds) or 'none'}"
        )
    for tensor in inputs:
        value = feeds[tensor.name]
        if not isinstance(value, np.ndarray):
            raise ValueError(  # noqa: TRY004 - one kind of error for what does not fit
                f"input '{tensor.name}' is a {type(value).__name__}, not a numpy array"
            )
        if value.dtype != tensor.dtype:  # not `.name`, which numpy makes anew each time
            raise ValueError(
                f"input '{tensor.name}' has dtype {value.dtype}, expected {tensor.dtype}"
            )
        fits = len(value.shape) == len(tensor.shape) and all(
            isinstance(want, str) or want == have
            for want, have in zip(tensor.shape, value.shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"input '{tensor.name}' has shape {list(value.shape)}, "
                f"expected [{', '.join(str(size) or '?' for size in tensor.shape)}]"
            )


def _tensors(arguments: list[Any]) -> tuple[SessionTensor, ...]:
    return tuple(
        SessionTensor(
            name=argument.name,
            dtype=_DTYPES.get(argument.type, argument.type),
            shape=tuple(
                size if isinstance(size, int) else str(size or "") for size in argument.shape
            ),
        )
        for argument in arguments
    )


def _make_options(
    runtime: ModuleType, settings: Mapping[str, str], threads: int, log_severity: int
) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = log_severity
    options.intra_op_num_threads = threads
    for key, value in settings.items():
        if key == GRAPH_OPTIMIZATION:
            if value not in _LEVELS:
                raise ValueError(f"{key} is one of {', '.join(_LEVELS)}, not {value!r}")
            options.graph_optimization_level = getattr(
                runtime.GraphOptimizationLevel, _LEVELS[value]
            )
        else:
            options.add_session_config_entry(key, value)
    return options


def _built_in_without_plugin(runtime: ModuleType, known: providers.Known) -> tuple[str, ...]:
    """The runtime's own providers, when the plug-in of this one is not installed."""
    if known.plugin is not None and providers.is_installed(known.plugin):
        return ()
    return tuple(runtime.get_available_providers())


def _devices(runtime: ModuleType, known: providers.Known, kind: str) -> list[Any]:
    """The plug-in's devices of a kind, or all where it tells no kinds apart (simulators)."""
    devices = providers.plugin_devices(runtime, known)
    if not devices:
        raise DeviceError(
            f"the plug-in of {known.name} finds no device here", remedy=known.brought_by
        )
    same = [device for device in devices if device.device.type.name.lower() == kind]
    return same or devices


def _fill_in(plugin: providers.Plugin, device: str, options: Mapping[str, str]) -> dict[str, str]:
    """A variant's provider options, and what only this device can know."""
    filled = dict(options)
    if not any(name in filled for name in plugin.backend_options):
        filled[plugin.backend_options[0]] = providers.backend_path(plugin, device)
    names_a_chip = any(name in filled for name in plugin.chip_options)
    if providers.is_simulated(plugin) and not names_a_chip:
        filled |= plugin.simulator_options
    return filled


def _first_line(error: Exception) -> str:
    """ONNX Runtime's message without its preamble, cut at 300 characters."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip())
    return (text.splitlines() or [type(error).__name__])[0][:300]


def _remedy(message: str) -> str:
    """What to try, by what ONNX Runtime complains of."""
    for pattern, remedy in _REMEDIES:
        if re.search(pattern, message):
            return remedy
    return "another variant; `edgepack-agent providers` tells what this device has"
