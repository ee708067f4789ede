"""Opset and IR versions that the installed ONNX Runtime loads."""

from collections.abc import Callable
from functools import cache, partial
from itertools import count
from pathlib import Path

import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, InvalidProtobuf

from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import cpu_session, quiet_options
from edgepack.packager.graph.queries import is_standard

OLDEST_OPSET = 7
"""The oldest that ONNX Runtime computes as the standard says; the pass `clean` raises it."""

OLDEST_IR_VERSION = 3
"""What ONNX Runtime's own reader accepts at least."""

_PROBE_OPSET = 11
_PROBE_IR_VERSION = 7


def check_versions(path: Path, model: onnx.ModelProto) -> int:
    """Reject a model of versions that are too old, or too new for the installed ONNX Runtime.

    Args:
        path: The model's file, for messages.
        model: The model.

    Returns:
        Its version of the default operator set.

    Raises:
        BuildError: With the versions that will do.
    """
    refusal = partial(BuildError, found_in=str(path))
    runtime = f"the installed onnxruntime {onnxruntime.__version__} knows up to"
    imported = (entry.version for entry in model.opset_import if is_standard(entry))
    opset, ir_version = int(next(imported, 0)), int(model.ir_version)
    if opset == 0:
        raise refusal("the model imports no default operator set")
    if opset < OLDEST_OPSET:
        raise refusal(
            f"opset {opset} is too old: the oldest that can be built from is {OLDEST_OPSET}",
            remedy="export again with opset 17, or onnx.version_converter.convert_version(model, "
            "17)",
        )
    if not loads(opset):
        newest = _newest(_PROBE_OPSET, loads)
        raise refusal(
            f"opset {opset} is too new: {runtime} opset {newest}",
            remedy=f"export again with opset {min(newest, 17)} … {newest}, or install a newer "
            "onnxruntime",
        )
    if ir_version < OLDEST_IR_VERSION:
        raise refusal(
            f"IR version {ir_version} is too old: {OLDEST_IR_VERSION} is the oldest",
            remedy="export the model again with a current exporter",
        )
    if not loads(ir_version=ir_version):
        newest = _newest(_PROBE_IR_VERSION, lambda version: loads(ir_version=version))
        raise refusal(
            f"IR version {ir_version} is too new: {runtime} IR version {newest}",
            remedy=f"set model.ir_version = {newest} and save it again where the model uses "
            "nothing newer, or install a newer onnxruntime",
        )
    return opset


@cache
def loads(opset: int = _PROBE_OPSET, ir_version: int = _PROBE_IR_VERSION) -> bool:
    """Return True if the installed ONNX Runtime loads a model of these versions.

    The function loads a model with a single node: ONNX Runtime publishes its limits nowhere else.
    """
    value = partial(onnx.helper.make_tensor_value_info, elem_type=onnx.TensorProto.FLOAT, shape=[1])
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "probe", [value("x")], [value("y")])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version
    )
    try:
        cpu_session(model.SerializeToString(), quiet_options())
    except (Fail, InvalidGraph, InvalidProtobuf):
        return False
    return True


def _newest(start: int, is_known: Callable[[int], bool]) -> int:
    """Return the newest known version, from a known version on."""
    return next(version for version in count(start) if not is_known(version + 1))
