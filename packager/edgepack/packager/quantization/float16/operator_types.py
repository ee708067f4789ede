"""Inputs and outputs of operators that may be 16-bit floats, by ONNX Runtime's schemas."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import onnx
from onnxruntime.capi import onnxruntime_pybind11_state as _runtime

_HALF = "tensor(float16)"


@functools.cache
def _schemas() -> Mapping[tuple[str, str], tuple[Any, ...]]:
    """Return every operator that ONNX Runtime knows, its versions in order."""
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in _runtime.get_all_operator_schema():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return {
        key: tuple(sorted(versions, key=lambda schema: int(schema.since_version)))
        for key, versions in found.items()
    }


def halvable(node: onnx.NodeProto, opsets: Mapping[str, int]) -> tuple[set[int], set[int]]:
    """Return positions of inputs and outputs with a type that may be float16 in place of float.

    Args:
        node: The node.
        opsets: Version of each operator set, by domain; the standard domain is "".

    Returns:
        Input positions, output positions; empty for an operator that ONNX Runtime does not know.
    """
    domain = "" if node.domain == "ai.onnx" else node.domain
    known = [
        schema
        for schema in _schemas().get((domain, node.op_type), ())
        if schema.since_version <= opsets.get(domain, 1)
    ]
    if not known:
        return set(), set()
    schema = known[-1]
    free = {
        constraint.type_param_str
        for constraint in schema.type_constraints
        if _HALF in constraint.allowed_type_strs
    }
    return (
        set(_positions(schema.inputs, len(node.input), free)),
        set(_positions(schema.outputs, len(node.output), free)),
    )


def _positions(formal: Any, count: int, free: set[str]) -> Iterator[int]:
    """Yield positions of float16 parameters; the last formal parameter stands for all further."""
    for position in range(count):
        if formal and formal[min(position, len(formal) - 1)].typeStr in free:
            yield position
