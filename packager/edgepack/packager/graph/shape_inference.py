"""Inference of element types and shapes from inputs and constants.

ONNX's own inference with data propagation; symbolic inference of ONNX Runtime raises AssertionError
on graphs that were exported with Constant nodes, and folding (pass `optimize`) makes symbolic
inference superfluous.
"""

import math
from collections.abc import Iterable

import onnx
from onnx import shape_inference

from edgepack.packager.graph.edits import refill, with_contents

_KEPT_ELEMENTS = 1024
"""Initializers up to this size may hold shapes and axes; larger ones are weights."""

_KEEP_SHAPE = {
    ("ai.onnx.ml", "Scaler"),
    ("ai.onnx.ml", "Normalizer"),
    ("", "SimplifiedLayerNormalization"),
}
"""Operators that ONNX infers no shape for and that keep the shape of their input.

The first two precede a network from scikit-learn and return float32. ONNX Runtime alone defines the
third, which keeps the element type too.
"""


def add_shapes(model: onnx.ModelProto, known: Iterable[onnx.ValueInfoProto] = ()) -> None:
    """Write inferred types and shapes into a model, in place, at any size of its weights.

    Args:
        model: The model.
        known: Known shapes: fill the gaps, since ONNX's inference stops at foreign operators.

    Raises:
        onnx's InferenceError: The graph contradicts itself.
    """
    graph, inferred = model.graph, infer(model)
    refill(graph.value_info, inferred.value_info)
    for own, found in zip(graph.output, inferred.output, strict=True):
        own.CopyFrom(found)
    made = {name for node in graph.node for name in node.output}
    there = {value.name for value in (*graph.value_info, *graph.output)}
    graph.value_info.extend(
        value for value in known if value.name in made and value.name not in there
    )


def infer(model: onnx.ModelProto) -> onnx.GraphProto:
    """Return a graph without weights, with the inferred types and shapes in `value_info`.

    Inference runs on a skeleton without the weights' values, so that neither time nor protobuf's 2
    GB depend on the weights. The model's own notes of shapes are ignored.

    Raises:
        onnx's InferenceError: The graph contradicts itself.
    """
    skeleton = with_contents(model, model.graph.node, model.graph.input, model.graph.output)
    graph = skeleton.graph
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _KEPT_ELEMENTS:
            graph.initializer.append(tensor)
        else:
            # A tensor of the graph's own (not an input) must come from somewhere: an input.
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    inferred = shape_inference.infer_shapes(skeleton, strict_mode=False, data_prop=True).graph
    while added := _like_their_inputs(inferred):
        graph.value_info.extend(added)
        inferred = shape_inference.infer_shapes(skeleton, strict_mode=False, data_prop=True).graph
    return inferred


def _like_their_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the unknown outputs of `_KEEP_SHAPE`, with the shapes of their inputs."""
    known = {value.name: value.type for value in (*graph.value_info, *graph.input)}
    told = known.keys() | {value.name for value in graph.output}
    added = []
    for node in graph.node:
        if (node.domain, node.op_type) not in _KEEP_SHAPE or node.output[0] in told:
            continue
        if node.input[0] in known and known[node.input[0]].tensor_type.elem_type:
            value = onnx.ValueInfoProto(name=node.output[0], type=known[node.input[0]])
            if node.domain:
                value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            added.append(value)
    return added


def fixed_types(model: onnx.ModelProto) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return element type and shape of each tensor with a fixed shape, weights aside.

    The shapes are inferred again: an export's notes may be older than its inputs. Of a graph that
    contradicts itself there are none: the pass infer_shapes says where.
    """
    try:
        inferred = infer(model)
    except shape_inference.InferenceError:
        return {}
    tensors = {
        value.name: value.type.tensor_type
        for value in (*inferred.value_info, *inferred.input, *inferred.output)
        if value.type.tensor_type.HasField("shape")
    }
    return {
        name: (tensor.elem_type, tuple(dim.dim_value for dim in tensor.shape.dim))
        for name, tensor in tensors.items()
        if all(dim.HasField("dim_value") for dim in tensor.shape.dim)
    }
