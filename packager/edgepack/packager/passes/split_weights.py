"""Convolutions as a sum of two, so that 8-bit weights count as 16 bits on hardware without these.

The first convolution has the weights rounded to 8 bits, the second what the rounding costs, with
scales of its own. A detector of text needs this: its map may move by a pixel, and a recognizer
reads spaces by pixels (`docs/how-to/pipelines.md`).
"""

from copy import deepcopy

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import drop_unread, name_nodes, refill
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.text import counted

_AXES = {"Conv": (1, 2, 3, 4), "ConvTranspose": (0, 2, 3, 4)}
"""Axes of the weights that share a scale."""
_LARGEST = 127


def split_weights(model: onnx.ModelProto, settings: Quantize) -> str:
    """Split convolutions that get a weight scale per channel; return a note.

    Args:
        model: The float model; changed in place.
        settings: The settings of its quantization.
    """
    graph = model.graph
    stored = {one.name: one for one in graph.initializer}
    nodes: list[onnx.NodeProto] = []
    count = 0
    for node in graph.node:
        nodes.append(node)
        if node.op_type in settings.per_channel and node.op_type in _AXES:
            tensor = stored.get(node.input[1])
            if tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT:
                nodes += _split(graph, node, tensor)
                count += 1
    refill(graph.node, nodes)
    drop_unread(graph)
    name_nodes(graph)
    add_shapes(model)
    return f"{counted(count, 'convolution')} became a sum of two: 16-bit weights in two parts."


def _split(
    graph: onnx.GraphProto, node: onnx.NodeProto, tensor: onnx.TensorProto
) -> list[onnx.NodeProto]:
    """Give a node its rounded weights; return the node for the rest, and their sum."""
    weights = np.asarray(stored_tensors.values(tensor), np.float32)
    axes = tuple(axis for axis in _AXES[node.op_type] if axis < weights.ndim)
    scales = np.abs(weights).max(axis=axes, keepdims=True) / np.float32(_LARGEST)
    scales[scales == 0] = 1
    rounded = np.rint(weights / scales) * scales
    (output,) = node.output
    rest = deepcopy(node)
    parts = ((node, "rounded", rounded), (rest, "rest", weights - rounded))
    for part, word, values in parts:
        name = f"{output}/{word}-weights"
        graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
        part.input[1], part.output[0] = name, f"{output}/{word}"
        part.name = part.output[0]
    del rest.input[2:]
    total = helper.make_node("Add", [node.output[0], rest.output[0]], [output], f"{output}/sum")
    return [rest, total]
