"""Which opset and IR versions the installed ONNX Runtime loads."""

from functools import cache

import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, InvalidProtobuf

_PROBE_OPSET = 11
_PROBE_IR_VERSION = 7
_FATAL_ONLY = 4


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
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    try:
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except (Fail, InvalidGraph, InvalidProtobuf):
        return False
    return True
