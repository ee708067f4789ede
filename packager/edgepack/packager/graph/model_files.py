"""Deterministic writing of ONNX models, and opening of models on the CPU.

Protobuf cannot serialise more than 2 GB, so larger models keep their weights in a file next to the
model; all functions here handle both.
"""

import mmap
from copy import deepcopy
from pathlib import Path

import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as _runtime

from edgepack import durable
from edgepack.agent.runtime.opening import FATAL_ONLY
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.queries import all_nodes, is_standard

EXTERNAL_ABOVE_BYTES = 100_000_000
"""Weights beyond this go to a file of their own, which all forms of a model share and map."""

_MESSAGE_BYTES = 1_800_000_000
"""Largest weights in a single file: below protobuf's 2 GB with room for the graph."""

WEIGHTS_SUFFIX = ".data"

_LOWEST_IR = 8
"""The IR version of opset 15 … 18, which every ONNX Runtime that profiles allow reads."""

_EXTERNAL_FROM_BYTES = 1024
_WHOLE_SHARE = 0.98
_STORED_FROM_BYTES = 64 * 1024
"""Smaller tensors of a large model are loaded: they may be shapes, axes or scales."""

RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    _runtime.EngineError,
    _runtime.EPFail,
    _runtime.Fail,
    _runtime.InvalidArgument,
    _runtime.InvalidGraph,
    _runtime.InvalidProtobuf,
    _runtime.NoModel,
    _runtime.NoSuchFile,
    _runtime.NotImplemented,
    _runtime.RuntimeException,
)
"""What ONNX Runtime raises; its classes have no common base but `Exception`."""


def weights_size_bytes(model: onnx.ModelProto) -> int:
    """Return bytes that the model's initializers take, subgraphs not counted."""
    return sum(stored_tensors.size_bytes(tensor) for tensor in model.graph.initializer)


def is_large(model: onnx.ModelProto) -> bool:
    """Return True if the weights are too large for a single file."""
    return weights_size_bytes(model) > _MESSAGE_BYTES


def has_own_file(model: onnx.ModelProto) -> bool:
    """Return True if the weights go to a file of their own."""
    return weights_size_bytes(model) > EXTERNAL_ABOVE_BYTES


def load_model(path: Path) -> onnx.ModelProto:
    """Read a model; the weights of a large model stay in their file, see `attach_weights`."""
    model = onnx.load(path, load_external_data=False)
    attach_weights(model, path.parent)
    return model


def attach_weights(model: onnx.ModelProto, folder: Path) -> None:
    """Make a model's external data reachable, in place.

    The data are loaded, except for the weights of a large model: those stay in their file, and
    `stored_tensors.values` reads the weights. Their file must stay as long as the model is used.

    Args:
        model: The parsed model.
        folder: Where its file lies.
    """
    folder = folder.resolve()
    places = [stored_tensors.place(tensor, folder) for tensor in model.graph.initializer]
    if sum(found.length for found in places if found) > EXTERNAL_ABOVE_BYTES:
        for tensor, found in zip(model.graph.initializer, places, strict=True):
            if found and found.length >= _STORED_FROM_BYTES:
                stored_tensors.put(tensor, str(found.file), found.offset, found.length)
    for _, tensor in stored_tensors.named_tensors(model):
        if not stored_tensors.is_held(tensor):
            stored_tensors.load(tensor, folder)


def save_model(model: onnx.ModelProto, path: Path, *, is_shared: bool = False) -> int:
    """Write a model deterministically, with external data if too large for a single file.

    The file is not flushed to the disk: a build writes dozens, and publishes copies of few.

    Args:
        model: The model.
        path: The `.onnx` file; its folder must exist.
        is_shared: Whether weights go to a file of their own in any case, for another graph.

    Returns:
        Bytes written, external data included.
    """
    weights_bytes = 0
    written = model
    is_outside = is_shared or has_own_file(model)
    if is_outside or any(map(stored_tensors.is_held, model.graph.initializer)):
        written = deepcopy(model)
    if is_outside:
        weights_bytes = _write_weights(written.graph, path.with_suffix(WEIGHTS_SUFFIX))
    elif written is not model:
        for tensor in written.graph.initializer:
            stored_tensors.load(tensor)
    content = written.SerializeToString(deterministic=True)
    durable.write_file(path, content, lasting=False)
    return len(content) + weights_bytes


def size_on_disk(path: Path) -> int:
    """Return bytes of a model that `save_model` wrote, its weights included."""
    weights = path.with_suffix(WEIGHTS_SUFFIX)
    return path.stat().st_size + (weights.stat().st_size if weights.exists() else 0)


def _write_weights(graph: onnx.GraphProto, path: Path) -> int:
    """Write the initializers to a file, piece by piece, and make the tensors refer to the file.

    Large tensors start at a page, so that ONNX Runtime maps them into memory. A file that already
    holds all initializers is linked instead of copied.
    """
    whole = _whole_file(graph)
    if whole is not None and link(whole, path):
        for tensor in graph.initializer:
            if (found := stored_tensors.place(tensor)) is not None:
                stored_tensors.put(tensor, path.name, found.offset, found.length)
        return path.stat().st_size
    with durable.replacing(path, lasting=False) as file:
        for tensor in graph.initializer:
            length = stored_tensors.size_bytes(tensor)
            is_inside = stored_tensors.place(tensor) is None
            if is_inside and (not tensor.HasField("raw_data") or length < _EXTERNAL_FROM_BYTES):
                continue
            if length >= _STORED_FROM_BYTES:
                file.write(bytes(-file.tell() % mmap.PAGESIZE))
            offset = file.tell()
            for piece in stored_tensors.pieces(tensor):
                file.write(piece)
            stored_tensors.put(tensor, path.name, offset, length)
        return file.tell()


def _whole_file(graph: onnx.GraphProto) -> Path | None:
    """Return the file that holds the large initializers and (nearly) nothing else, if any."""
    outside_bytes = inside_bytes = 0
    files = set()
    for tensor in graph.initializer:
        found = stored_tensors.place(tensor)
        if found is None:
            inside_bytes += stored_tensors.size_bytes(tensor)
        else:
            outside_bytes += found.length
            files.add(found.file)
    if len(files) != 1 or inside_bytes > EXTERNAL_ABOVE_BYTES:
        return None
    file = files.pop()
    return file if outside_bytes >= _WHOLE_SHARE * file.stat().st_size else None


def link(file: Path, path: Path) -> bool:
    """Give a file a second name; False where the file system cannot."""
    if path.exists() and path.samefile(file):
        return True
    path.unlink(missing_ok=True)
    try:
        path.hardlink_to(file)
    except OSError:
        return False
    return True


def open_on_cpu(
    path: Path, *, threads: int = 0, optimize: bool = True, prepack: bool = True
) -> onnxruntime.InferenceSession:
    """Open a model on the CPU provider, quietly.

    The weights of a large model are used from their file: packed for speed all weights would be
    copied.

    Args:
        path: The model, written by `save_model`.
        threads: Intra-op threads; 0 leaves the number to ONNX Runtime.
        optimize: Whether ONNX Runtime may rewrite the graph; without optimization,
            Quantize/Dequantize pairs are computed unchanged, which is close to the integers of
            other providers.
        prepack: Whether ONNX Runtime may pack weights for speed.

    Returns:
        The session.
    """
    options = quiet_options(threads=threads, optimize=optimize)
    if not prepack or path.with_suffix(WEIGHTS_SUFFIX).exists():
        options.add_session_config_entry("session.disable_prepacking", "1")
    return cpu_session(path, options)


def cpu_session(
    model: Path | bytes, options: onnxruntime.SessionOptions
) -> onnxruntime.InferenceSession:
    """Return a session on the CPU provider, of a file or of a model in memory."""
    given = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(given, sess_options=options, providers=[CPU_PROVIDER])


def keep_runtime_quiet() -> None:
    """Silence ONNX Runtime's own log on stderr, for programs with output for a person on stderr.

    Sessions have a log of their own (`quiet_options`); this function silences all other messages.
    """
    onnxruntime.set_default_logger_severity(FATAL_ONLY)


def quiet_options(*, threads: int = 0, optimize: bool = True) -> onnxruntime.SessionOptions:
    """Return session options that print nothing short of a crash: errors are raised too, and
    reported once.

    Args:
        threads, optimize: See `open_on_cpu`.
    """
    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = FATAL_ONLY
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Threads that wait for work spin otherwise, a third of the processor time of small models.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def drop_unused_opsets(model: onnx.ModelProto) -> None:
    """Remove unused operator sets (ONNX Runtime writes all known sets)."""
    domains = {"", *("" if is_standard(node) else node.domain for node in all_nodes(model.graph))}
    kept = opsets_of(model)
    del model.opset_import[:]
    for domain in sorted(domains & kept.keys()):
        model.opset_import.add(domain=domain, version=kept[domain])


def lowest_ir_version(model: onnx.ModelProto) -> int:
    """Return the lowest IR version that a model's operator sets allow, at least `_LOWEST_IR`."""
    needed = onnx.helper.find_min_ir_version_for(list(model.opset_import), True)
    return max(_LOWEST_IR, int(needed))


def opsets_of(model: onnx.ModelProto) -> dict[str, int]:
    """Return versions of the imported operator sets, by domain; the standard domain is ""."""
    return {
        "" if is_standard(entry) else entry.domain: entry.version for entry in model.opset_import
    }


def opset_of(model: onnx.ModelProto) -> int:
    """Return version of the standard operator set that the model imports."""
    return opsets_of(model)[""]
