"""Which opset and IR versions can be built from: what the installed ONNX Runtime loads."""

from functools import cache
from pathlib import Path

import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, InvalidProtobuf

from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import quiet_options

OLDEST_OPSET = 7
"""The oldest that ONNX Runtime computes as the standard says; the pass `clean` raises it."""

OLDEST_IR_VERSION = 3
"""What ONNX Runtime's own reader accepts at least."""

_PROBE_OPSET = 11
_PROBE_IR_VERSION = 7


def check_versions(path: Path, model: onnx.ModelProto) -> int:
    """Refuses a model of versions that are too old, or too new for the installed ONNX Runtime.

    Args:
        path: The model's file, for messages.
        model: The model.

    Returns:
        Its version of the default operator set.

    Raises:
        BuildError: With the versions that will do.
    """
    runtime = f"the installed onnxruntime {onnxruntime.__version__} knows up to"
    opset, ir_version = _default_opset(model), int(model.ir_version)
    if opset == 0:
        raise BuildError("the model imports no default operator set", found_in=str(path))
    if opset < OLDEST_OPSET:
        raise BuildError(
            f"opset {opset} is too old: the oldest that can be built from is {OLDEST_OPSET}",
            found_in=str(path),
            remedy="export again with opset 17, or onnx.version_converter.convert_version(model, "
            "17)",
        )
    if not knows_opset(opset):
        newest = newest_opset()
        raise BuildError(
            f"opset {opset} is too new: {runtime} opset {newest}",
            found_in=str(path),
            remedy=f"export again with opset {min(newest, 17)} … {newest}, or install a newer "
            "onnxruntime",
        )
    if ir_version < OLDEST_IR_VERSION:
        raise BuildError(
            f"IR version {ir_version} is too old: {OLDEST_IR_VERSION} is the oldest",
            found_in=str(path),
            remedy="export the model again with a current exporter",
        )
    if not knows_ir_version(ir_version):
        newest = newest_ir_version()
        raise BuildError(
            f"IR version {ir_version} is too new: {runtime} IR version {newest}",
            found_in=str(path),
            remedy=f"set model.ir_version = {newest} and save it again where the model uses "
            "nothing newer, or install a newer onnxruntime",
        )
    return opset


@cache
def knows_opset(version: int) -> bool:
    """Whether the installed ONNX Runtime loads a model of this version of the default opset."""
    return _loads(opset=version, ir_version=_PROBE_IR_VERSION)


@cache
def knows_ir_version(version: int) -> bool:
    """Whether the installed ONNX Runtime loads a model file of this IR version."""
    return _loads(opset=_PROBE_OPSET, ir_version=version)


def newest_opset() -> int:
    """The newest version of the default opset that the installed ONNX Runtime loads."""
    version = _PROBE_OPSET
    while knows_opset(version + 1):
        version += 1
    return version


def newest_ir_version() -> int:
    """The newest IR version that the installed ONNX Runtime loads."""
    version = _PROBE_IR_VERSION
    while knows_ir_version(version + 1):
        version += 1
    return version


def _default_opset(model: onnx.ModelProto) -> int:
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return int(entry.version)
    return 0


def _loads(*, opset: int, ir_version: int) -> bool:
    """Asks ONNX Runtime with a one-node model: it publishes its limits nowhere else."""
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "probe",
        [value("x", onnx.TensorProto.FLOAT, [1])],
        [value("y", onnx.TensorProto.FLOAT, [1])],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version
    )
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
        )
    except (Fail, InvalidGraph, InvalidProtobuf):
        return False
    return True
