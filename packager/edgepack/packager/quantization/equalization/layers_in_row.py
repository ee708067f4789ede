"""Search for consecutive layers: scaled channels of the first can be compensated in the next.

Allowed between the two are nodes that a positive factor passes through (ReLU, PRelu, LeakyRelu,
poolings), and a Clip from 0 (ReLU6), which a factor passes through below its bound.
"""

import msgspec
import onnx

from edgepack.packager.graph.node_chains import only_reading, scalar
from edgepack.packager.graph.operators import facts, tells_places
from edgepack.packager.graph.queries import GraphIndex, attribute, is_standard


class BoundedClip(msgspec.Struct, frozen=True, kw_only=True):
    """A Clip from 0 to a bound, and its output tensor."""

    output: str
    bound: float


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two layers in a row.

    Attributes:
        first, second: Their positions in the graph.
        channels: Number of channels between both.
        clips: Clips between both.
    """

    first: int
    second: int
    channels: int
    clips: tuple[BoundedClip, ...]


def find_pairs(index: GraphIndex) -> list[Pair]:
    """Return every two consecutive layers of a graph, in graph order."""
    found = (
        _pair_from(index, position)
        for position, node in enumerate(index.graph.node)
        if _has_constant_weights(index, node)
    )
    return [pair for pair in found if pair is not None]


def _pair_from(index: GraphIndex, position: int) -> Pair | None:
    first = index.graph.node[position]
    current = first.output[0]
    clips: list[BoundedClip] = []
    while (reader := only_reading(index, current)) is not None:
        node = index.graph.node[reader]
        if _reads(index, reader, current) and _channels_meet(index, first, node):
            channels = _sizes(index, first)[0]
            return Pair(first=position, second=reader, channels=channels, clips=tuple(clips))
        bound = _bound(index, node, current)
        if bound is not None:
            clips.append(BoundedClip(output=node.output[0], bound=bound))
        elif not _passes_a_factor(index, node, current):
            return None
        current = node.output[0]
    return None


def _bound(index: GraphIndex, node: onnx.NodeProto, name: str) -> float | None:
    """Return the upper bound of a Clip from 0; None for other nodes."""
    if node.op_type != "Clip" or not is_standard(node) or node.input[0] != name:
        return None
    bounds = [scalar(index, bound) for bound in node.input[1:]]
    return bounds[1] if len(bounds) == 2 and bounds[0] == 0.0 else None


def _has_constant_weights(index: GraphIndex, node: onnx.NodeProto) -> bool:
    if node.op_type not in ("Conv", "Gemm") or not is_standard(node):
        return False
    scaled = any(attribute(node, name, 1.0) != 1.0 for name in ("alpha", "beta"))
    turned = attribute(node, "transA")
    constants = list(node.input[1:])
    return (
        not scaled
        and not turned
        and all(name in index.initializers and index.is_float(name) for name in constants)
        and (len(constants) == 1 or len(index.shapes[constants[1]]) == 1)
    )


def _passes_a_factor(index: GraphIndex, node: onnx.NodeProto, name: str) -> bool:
    if not facts(node.op_type).passes_factor or not is_standard(node):
        return False
    if tells_places(node):
        return False
    return node.input[0] == name and all(n in index.initializers for n in node.input[1:])


def _reads(index: GraphIndex, position: int, name: str) -> bool:
    node = index.graph.node[position]
    return node.input[0] == name and _has_constant_weights(index, node)


def _channels_meet(index: GraphIndex, first: onnx.NodeProto, second: onnx.NodeProto) -> bool:
    """Return True if output channels of the first are input channels of the second, one to one."""
    if first.op_type != second.op_type:
        return False  # a Flatten stands between a Conv and a Gemm and spreads the channels
    made, _ = _sizes(index, first)
    _, read = _sizes(index, second)
    return bool(made == read * attribute(second, "group", 1))


def _sizes(index: GraphIndex, node: onnx.NodeProto) -> tuple[int, int]:
    """Output, and inputs of a group."""
    outputs, inputs = index.shapes[node.input[1]][:2]
    if node.op_type == "Gemm" and not attribute(node, "transB"):
        outputs, inputs = inputs, outputs
    return outputs or 0, inputs or 0
