"""Operators of the standard domain that only ONNX Runtime defines."""

from functools import cache

import onnx
from onnx import defs
from onnxruntime.capi import onnxruntime_pybind11_state as bindings


def is_runtime_operator(node: onnx.NodeProto, version: int) -> bool:
    """Return whether only ONNX Runtime defines a node's operator of the standard domain.

    ONNX Runtime's transformer tools write SimplifiedLayerNormalization there. No version of the
    ONNX standard has that operator, and ONNX Runtime reads the operator with any operator set.
    """
    if defs.has(node.op_type, ""):
        return False
    reached = [entry for entry in _runtime_versions().get(node.op_type, ()) if entry[0] <= version]
    return bool(reached) and not max(reached)[1]


@cache
def _runtime_versions() -> dict[str, list[tuple[int, bool]]]:
    """Return the versions of ONNX Runtime's standard operators: first opset, is deprecated."""
    versions: dict[str, list[tuple[int, bool]]] = {}
    for schema in bindings.get_all_operator_schema():
        if schema.domain in ("", "ai.onnx"):
            versions.setdefault(schema.name, []).append((schema.since_version, schema.deprecated))
    return versions
