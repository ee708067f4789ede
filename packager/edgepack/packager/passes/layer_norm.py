"""Recognition of layer normalization written as its formula, and fusion to a single operator.

    d = x - mean(x);  y = d / sqrt(mean(d ** 2) + epsilon) * scale + bias

over the last axis. `d ** 2` may be a Pow or a product of d with itself.
"""

import onnx

from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.graph.node_chains import (
    Chain,
    as_one,
    find_chains,
    is_near,
    only_reader,
    other_input,
    producer,
    reduced_axes,
    scalar,
    shorten,
)
from edgepack.packager.graph.queries import GraphIndex, attribute
from edgepack.text import counted

_FIRST_OPSET = 17


def fuse_layer_norm(model: onnx.ModelProto) -> str:
    """Replace each written-out layer normalization by a single node.

    Args:
        model: The model; changed in place.

    Returns:
        A note of the replacements, or "" without any.
    """
    chains = find_chains(model.graph, _match)
    if not chains:
        return ""
    if opset_of(model) < _FIRST_OPSET:
        return (
            f"Left as exported: {counted(len(chains), 'layer normalization')}; the operator "
            f"needs opset {_FIRST_OPSET}."
        )
    shorten(model.graph, chains)
    return f"{counted(len(chains), 'layer normalization')} became one node each."


def _match(index: GraphIndex, root: onnx.NodeProto) -> Chain | None:
    """Start at the square root in the middle and go both ways."""
    if root.op_type != "Sqrt":
        return None
    added = producer(index, root.input[0], "Add")
    if added is None:
        return None
    constant = next((name for name in added.input if scalar(index, name) is not None), "")
    epsilon = scalar(index, constant)
    variance = producer(index, other_input(added, constant), "ReduceMean")
    if epsilon is None or variance is None or not _is_last_axis(index, variance):
        return None
    square = producer(index, variance.input[0], "Pow", "Mul")
    if square is None or not _is_square(index, square):
        return None
    centered = producer(index, square.input[0], "Sub")
    if centered is None:
        return None
    mean = producer(index, centered.input[1], "ReduceMean")
    if mean is None or mean.input[0] != centered.input[0] or not _is_last_axis(index, mean):
        return None
    divided = only_reader(index, root.output[0], "Div")
    if divided is None or divided.input[0] != centered.output[0]:
        return None
    scaled = only_reader(index, divided.output[0], "Mul")
    shifted = only_reader(index, scaled.output[0], "Add") if scaled is not None else None
    if scaled is None or shifted is None:
        return None
    scale, bias = other_input(scaled, divided.output[0]), other_input(shifted, scaled.output[0])
    inside = {square.name, divided.name}
    readers = {index.graph.node[at].name for at in index.consumers[centered.output[0]]}
    if not _are_vectors(index, scale, bias) or readers != inside:
        return None
    parts = (mean, centered, square, variance, added, root, divided, scaled, shifted)
    inputs = [centered.input[0], scale, bias]
    return as_one("LayerNormalization", inputs, parts, axis=-1, epsilon=epsilon)


def _is_square(index: GraphIndex, node: onnx.NodeProto) -> bool:
    if node.op_type == "Mul":
        return bool(node.input[0] == node.input[1])
    return is_near(scalar(index, node.input[1]), 2.0)


def _is_last_axis(index: GraphIndex, node: onnx.NodeProto) -> bool:
    axes = reduced_axes(index, node)
    last = len(index.shapes.get(node.input[0], ())) - 1
    return bool(attribute(node, "keepdims", 1)) and len(axes) == 1 and axes[0] in (-1, last)


def _are_vectors(index: GraphIndex, *names: str) -> bool:
    shapes = [index.shapes[name] for name in names if name in index.initializers]
    return len(shapes) == len(names) and len(set(shapes)) == 1 and len(shapes[0]) == 1
