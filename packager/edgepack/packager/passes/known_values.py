"""Computes what follows from constants and from shapes in operators that were written out.

Definitions in the standard count axes and sizes at run time, from shapes. Older operator sets want
them as attributes: where the shapes are known, so are they.
"""

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph.operators import facts
from edgepack.packager.graph.shape_inference import infer
from edgepack.packager.graph.stored_tensors import values

_MOST_VALUES = 64
"""Axes, sizes and single numbers; anything larger is left to the pass that folds constants."""


def fold_known_values(
    graph: onnx.GraphProto, types: Mapping[str, onnx.TypeProto], opset: int
) -> tuple[onnx.ValueInfoProto, ...]:
    """Replaces nodes by initializers where what they give is known and small.

    Args:
        graph: Nodes and initializers; changed in place. What is made outside is in `types`.
        types: Types and shapes of tensors from outside.
        opset: The nodes' version of the standard operator set.

    Returns:
        Types and shapes of the inner tensors, as far as they follow.
    """
    while True:
        inner = _infer(graph, types, opset)
        if not _fold_once(graph, {**types, **{value.name: value.type for value in inner}}, opset):
            break
    _drop_empty(graph, {value.name for value in inner if _is_empty(value.type)})
    _drop_unread(graph)
    return inner


def _drop_unread(graph: onnx.GraphProto) -> None:
    """What was only read to know a value."""
    read = set(graph.node[-1].output)
    for node in reversed(list(graph.node)):
        if read.isdisjoint(node.output):
            graph.node.remove(node)
        else:
            read.update(node.input)
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _is_empty(kind: onnx.TypeProto) -> bool:
    sizes = kind.tensor_type.shape.dim
    return any(size.HasField("dim_value") and size.dim_value == 0 for size in sizes)


def _drop_empty(graph: onnx.GraphProto, empty: Collection[str]) -> None:
    """Parts that hold nothing are not split off and joined again: hardware reads none."""
    for node in graph.node:
        if node.op_type == "Concat":
            node.input[:] = [name for name in node.input if name not in empty]
        kept = [name for name in node.output if name not in empty]
        if (node.op_type == "Split" and len(kept) == 1 < len(node.output)) or (
            node.op_type == "Concat" and len(node.input) == 1
        ):
            whole = helper.make_node("Identity", node.input[:1], kept, name=node.name)
            node.CopyFrom(whole)


def _infer(
    graph: onnx.GraphProto, types: Mapping[str, onnx.TypeProto], opset: int
) -> tuple[onnx.ValueInfoProto, ...]:
    own = {name for node in graph.node for name in node.output}
    own |= {tensor.name for tensor in graph.initializer}
    read = dict.fromkeys(name for node in graph.node for name in node.input if name)
    last = graph.node[-1].output[0]
    whole = helper.make_model(
        helper.make_graph(
            list(graph.node),
            "written",
            [helper.make_value_info(name, types[name]) for name in read if name not in own],
            [onnx.ValueInfoProto(name=last)],
            list(graph.initializer),
        ),
        opset_imports=[helper.make_opsetid("", opset)],
    )
    return tuple(infer(whole).value_info)


def _fold_once(graph: onnx.GraphProto, types: Mapping[str, onnx.TypeProto], opset: int) -> bool:
    """Whether there was anything to replace."""
    known = {tensor.name: values(tensor) for tensor in graph.initializer}
    kept = []
    for number, node in enumerate(graph.node):
        is_last = number == len(graph.node) - 1
        found = None if is_last else _evaluate(node, known, types, opset)
        if found is None or found.size > _MOST_VALUES:
            kept.append(node)
            continue
        known[node.output[0]] = found
        graph.initializer.append(numpy_helper.from_array(found, node.output[0]))
    is_changed = len(kept) < len(graph.node)
    del graph.node[:]
    graph.node.extend(kept)
    return is_changed


def _evaluate(
    node: onnx.NodeProto,
    known: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]],
    types: Mapping[str, onnx.TypeProto],
    opset: int,
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
    if len(node.output) != 1:
        return None
    if facts(node.op_type).reads_shape:
        return _from_shape(node, types.get(node.input[0]))
    if not node.input or any(name and name not in known for name in node.input):
        return None
    from onnx.reference import ReferenceEvaluator

    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(known[name].dtype), known[name].shape
            )
            for name in dict.fromkeys(filter(None, node.input))
        ],
        [onnx.ValueInfoProto(name=node.output[0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    feeds = {name: known[name] for name in node.input if name}
    (result,) = ReferenceEvaluator(model).run(None, feeds)
    return np.asarray(result)


def _from_shape(
    node: onnx.NodeProto, kind: onnx.TypeProto | None
) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None:
    """What Shape or Size give, where all sizes that they read are fixed."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    start = next((entry.i for entry in node.attribute if entry.name == "start"), 0)
    end = next((entry.i for entry in node.attribute if entry.name == "end"), None)
    dims = list(kind.tensor_type.shape.dim)[start:end]
    if not all(size.HasField("dim_value") for size in dims):
        return None
    sizes = np.array([size.dim_value for size in dims], dtype=np.int64)
    return sizes if node.op_type == "Shape" else np.asarray(sizes.prod(dtype=np.int64))
