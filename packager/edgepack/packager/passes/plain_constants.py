"""Constants in the form for quantizers and passes: dense initializers."""

from copy import deepcopy

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import refill
from edgepack.packager.graph.queries import is_standard

_VALUE_ATTRIBUTES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def make_constants_plain(graph: onnx.GraphProto) -> None:
    """Turn Constant nodes and sparse initializers of the main graph into dense initializers.

    Constants in the bodies of control flow stay, and so do Constant nodes with texts.
    """
    graph.initializer.extend(map(_dense, graph.sparse_initializer))
    del graph.sparse_initializer[:]
    kept = []
    for node in graph.node:
        tensor = _constant_value(node)
        if tensor is None:
            kept.append(node)
            continue
        tensor.name = node.output[0]
        graph.initializer.append(tensor)
    if len(kept) != len(graph.node):
        refill(graph.node, kept)


def _constant_value(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or not is_standard(node):
        return None
    attribute = node.attribute[0]
    if attribute.name == "value":
        tensor: onnx.TensorProto = deepcopy(attribute.t)
        return tensor
    if attribute.name == "sparse_value":
        return _dense(attribute.sparse_tensor)
    kind = _VALUE_ATTRIBUTES.get(attribute.name)
    if kind is None:
        return None
    return numpy_helper.from_array(np.asarray(helper.get_attribute_value(attribute), dtype=kind))


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Return all values of a sparse tensor; its indices are linear, or a row per value."""
    shape = tuple(sparse.dims)
    values = stored_tensors.values(sparse.values)
    where = stored_tensors.values(sparse.indices).astype(np.int64)
    dense = np.zeros(shape, dtype=values.dtype)
    if where.ndim == 1:
        dense.flat[where] = values
    else:
        dense[tuple(where.T)] = values
    return numpy_helper.from_array(dense, sparse.values.name)
