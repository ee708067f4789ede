"""Shapes of all tensors of a graph with fixed inputs, through its arithmetic of shapes.

ONNX's inference follows no Cast between a Shape and a Reshape, which Paddle's exporter writes.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph.edits import refill
from edgepack.packager.graph.shape_inference import fixed_types
from edgepack.tasks.arrays import Tensor

_MOST_VALUES = 64
"""Axes and sizes; anything larger is a weight."""


def fold_shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Replace the arithmetic of shapes by constants; return the shape of each known tensor.

    Args:
        model: A model with fixed inputs, and its constants in initializers; changed in place.
    """
    graph = model.graph
    del graph.value_info[:]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    while True:
        shapes = {name: sizes for name, (_, sizes) in fixed_types(model).items()}
        known = {
            one.name: numpy_helper.to_array(one)
            for one in graph.initializer
            if helper.tensor_dtype_to_np_dtype(one.data_type).kind in "iub"
            and len(one.dims) <= 1
            and (not one.dims or one.dims[0] <= _MOST_VALUES)
        }
        kept = []
        for node in graph.node:
            values = _compute(model, node, shapes, known)
            if values is None:
                kept.append(node)
                continue
            known |= values
            graph.initializer.extend(
                numpy_helper.from_array(value, name) for name, value in values.items()
            )
        if len(kept) == len(graph.node):
            break
        refill(graph.node, kept)
    for output in graph.output:
        for size in shapes.get(output.name, ()):
            output.type.tensor_type.shape.dim.add(dim_value=size)
    return shapes | {one.name: tuple(one.dims) for one in graph.initializer}


def _compute(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    shapes: dict[str, tuple[int, ...]],
    known: dict[str, Tensor],
) -> dict[str, Tensor] | None:
    """Return the outputs of a node that computes sizes; None for any other."""
    if node.op_type == "Shape" and node.input[0] in shapes:
        return {node.output[0]: np.array(shapes[node.input[0]], np.int64)}
    given = [name for name in node.input if name]
    if not given or any(name not in known for name in given):
        return None
    # Loaded where it is needed: few builds need it, and it takes 0.05 s.
    from onnx.reference import ReferenceEvaluator

    alone = helper.make_model(
        helper.make_graph(
            [node],
            "alone",
            [helper.make_value_info(name, onnx.TypeProto()) for name in given],
            [helper.make_value_info(name, onnx.TypeProto()) for name in node.output],
        ),
        opset_imports=model.opset_import,
    )
    found = ReferenceEvaluator(alone).run(None, {name: known[name] for name in given})
    return dict(zip(node.output, found, strict=True))
