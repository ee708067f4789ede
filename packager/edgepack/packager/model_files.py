"""Writing ONNX models to disk, the same bytes for the same model, and opening them on the CPU.

Protobuf cannot serialise more than 2 GB, so larger models keep their weights in one file beside
the model; everything here works on both.
"""

from pathlib import Path

import onnx
import onnxruntime
from onnx import external_data_helper
from onnxruntime.capi import onnxruntime_pybind11_state as _runtime

from edgepack import durable
from edgepack.packager.graph import subgraphs

EXTERNAL_ABOVE_BYTES = 1_800_000_000
"""Weights beyond this go to a file of their own: below protobuf's 2 GB with room for the graph."""

WEIGHTS_SUFFIX = ".data"

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
    """Bytes that the model's initializers take, subgraphs not counted."""
    return sum(len(tensor.raw_data) or tensor.ByteSize() for tensor in model.graph.initializer)


def save_model(model: onnx.ModelProto, path: Path) -> int:
    """Writes a model deterministically, with external data where it is too large for one file.

    Args:
        model: The model, its weights in memory.
        path: The `.onnx` file; its folder must exist.

    Returns:
        Bytes written, external data included.
    """
    if weights_size_bytes(model) <= EXTERNAL_ABOVE_BYTES:
        content = model.SerializeToString(deterministic=True)
        durable.write_file(path, content)
        return len(content)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    weights = path.with_suffix(WEIGHTS_SUFFIX)
    weights.unlink(missing_ok=True)
    external_data_helper.convert_model_to_external_data(
        copy, all_tensors_to_one_file=True, location=weights.name, size_threshold=1024
    )
    external_data_helper.write_external_data_tensors(copy, str(path.parent))
    durable.write_file(path, copy.SerializeToString(deterministic=True))
    return path.stat().st_size + weights.stat().st_size


def open_on_cpu(
    path: Path, *, threads: int = 0, optimize: bool = True
) -> onnxruntime.InferenceSession:
    """Opens a model on the CPU provider, quietly.

    Args:
        path: The model.
        threads: Intra-op threads; 0 leaves it to ONNX Runtime.
        optimize: Whether ONNX Runtime may rewrite the graph; without it, Quantize/Dequantize
            pairs are computed as they stand, which is what other providers' integers are near.

    Returns:
        The session.
    """
    options = quiet_options(threads=threads)
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        str(path), sess_options=options, providers=["CPUExecutionProvider"]
    )


def quiet_options(*, threads: int = 0) -> onnxruntime.SessionOptions:
    """Session options that print errors only."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    return options


def drop_unused_opsets(model: onnx.ModelProto) -> None:
    """Removes imports of operator sets that no node uses (ONNX Runtime writes all it knows)."""
    domains = _domains(model.graph) | {""}
    kept = {
        "" if entry.domain == "ai.onnx" else entry.domain: entry.version
        for entry in model.opset_import
    }
    del model.opset_import[:]
    for domain in sorted(domains & kept.keys()):
        model.opset_import.add(domain=domain, version=kept[domain])


def _domains(graph: onnx.GraphProto) -> set[str]:
    domains = set()
    for node in graph.node:
        domains.add("" if node.domain == "ai.onnx" else node.domain)
        for body in subgraphs(node):
            domains |= _domains(body)
    return domains


def opset_of(model: onnx.ModelProto) -> int:
    """Version of the standard operator set that the model imports."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return int(entry.version)
    raise ValueError("the model imports no standard operator set")
