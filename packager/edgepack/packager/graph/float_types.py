"""Floats of 16 and 64 bits become floats of 32 bits, which every recipe starts from.

A model in half or double precision keeps its inputs and outputs: casts connect both to the rest.
float16 and bfloat16 are exact in 32 bits; if a recipe requests 16 bits, its own pass makes 16-bit
floats.
"""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import refill
from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.queries import subgraphs

FLOAT_TYPES = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
)
"""Element types of floats, of which a device has but some."""

_HALVES = {int(TensorProto.FLOAT16): "float16", int(TensorProto.BFLOAT16): "bfloat16"}
_DOUBLE = {int(TensorProto.DOUBLE): "float64"}
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype"})
_LARGEST = np.finfo(np.float32).max


def to_float32(model: onnx.ModelProto) -> tuple[str, ...]:
    """Change a model's other floats to 32 bits, including control flow's bodies.

    float64 is left unchanged if only arithmetic on sizes uses float64.

    Args:
        model: The model without local functions; changed in place.

    Returns:
        A note where something was changed.
    """
    types = _HALVES | (_DOUBLE if _computes_in_double(model.graph) else {})
    found = {kind for kind in _types(model.graph) if kind in types}
    if not found:
        return ()
    renamed = _cast_interface(model.graph, found)
    _widen(model.graph, found, renamed, is_main=True)
    words = " and ".join(sorted(types[kind] for kind in found))
    return (
        f"The model computes in {words}: it is prepared in float32; its inputs and outputs keep "
        "their types.",
    )


def replace_bfloat16(model: onnx.ModelProto) -> tuple[str, ...]:
    """Convert a bfloat16 model to float32, inputs and outputs included, without loss.

    ONNX Runtime computes nothing in bfloat16 on a CPU, and NumPy has no bfloat16 type.

    Args:
        model: The model; changed in place.

    Returns:
        A note where something was changed.
    """
    wanted = {int(TensorProto.BFLOAT16)}
    if not wanted & set(_types(model.graph)):
        return ()
    _widen(model.graph, wanted, {}, is_main=False)
    return (
        "The model's bfloat16 values, inputs and outputs too, became float32: nothing is lost.",
    )


def _computes_in_double(graph: onnx.GraphProto) -> bool:
    doubles = {t.name for t in graph.initializer if t.data_type == TensorProto.DOUBLE}
    return any(
        (facts(node.op_type).weights == "product" and doubles & set(node.input))
        or any(_computes_in_double(body) for body in subgraphs(node))
        for node in graph.node
    )


def _types(graph: onnx.GraphProto) -> Iterator[int]:
    """Yield element types that a graph speaks of."""
    for tensor in graph.initializer:
        yield tensor.data_type
    for value in (*graph.input, *graph.output):
        yield value.type.tensor_type.elem_type
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES:
                yield attribute.i
            if attribute.HasField("t"):
                yield attribute.t.data_type
        for body in subgraphs(node):
            yield from _types(body)


def _cast_interface(graph: onnx.GraphProto, types: set[int]) -> dict[str, str]:
    """Insert casts after inputs and before outputs; return the inner tensors' new names."""
    renamed = {}
    before, after = [], []
    for value in graph.input:
        if value.type.tensor_type.elem_type in types:
            renamed[value.name] = inner = f"{value.name}/float32"
            before.append(_cast(value.name, inner, TensorProto.FLOAT))
    for value in graph.output:
        kind = value.type.tensor_type.elem_type
        if kind in types and value.name not in renamed:
            renamed[value.name] = inner = f"{value.name}/float32"
            after.append(_cast(inner, value.name, kind))
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    refill(graph.node, [*before, *graph.node, *after])
    return renamed


def _cast(source: str, result: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], name=f"{result}/Cast", to=kind)


def _widen(
    graph: onnx.GraphProto, types: set[int], renamed: dict[str, str], *, is_main: bool
) -> None:
    for tensor in graph.initializer:
        _widen_tensor(tensor, types)
    values = list(graph.value_info)
    if not is_main:
        values += [*graph.input, *graph.output]
    for value in values:
        if value.type.tensor_type.elem_type in types:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    casts = {f"{name}/Cast" for name in renamed}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _widen_tensor(attribute.t, types)
            if (
                attribute.name in _TYPE_ATTRIBUTES
                and attribute.i in types
                and node.name not in casts
            ):
                attribute.i = TensorProto.FLOAT
        for body in subgraphs(node):
            for inner in body.node:
                inner.input[:] = [renamed.get(name, name) for name in inner.input]
            _widen(body, types, renamed, is_main=False)


def _widen_tensor(tensor: onnx.TensorProto, types: set[int]) -> None:
    if tensor.data_type not in types:
        return
    values = stored_tensors.values(tensor)
    wide = values.astype(np.float64)
    limited = np.where(np.isfinite(wide), np.clip(wide, -_LARGEST, _LARGEST), wide)
    tensor.CopyFrom(numpy_helper.from_array(limited.astype(np.float32), tensor.name))
