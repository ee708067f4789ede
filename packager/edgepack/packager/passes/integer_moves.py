"""Quantize/Dequantize pairs around operators that move integers, as runtimes expect.

    QuantizeLinear -> Reshape -> DequantizeLinear

becomes, the same to the bit,

    QuantizeLinear -> DequantizeLinear -> Reshape -> QuantizeLinear -> DequantizeLinear

A model that was TensorFlow Lite's comes with Reshape, Transpose and Concat of integers. Qualcomm's
provider rejected five of six such models completely, and ONNX Runtime computed the neighbours in
floats: a MobileNetV2 took .49 ms on the CPU, and takes .23.
"""

from collections.abc import Iterator
from copy import deepcopy
from functools import partial

import msgspec
import numpy as np
import onnx
from onnx import helper

from edgepack.packager.graph.node_chains import replace
from edgepack.packager.graph.operators import facts, tells_places
from edgepack.packager.graph.queries import GraphIndex, attributes, index_graph
from edgepack.text import counted

_INTEGERS = frozenset({"int8", "uint8", "int16", "uint16"})
"""NumPy's names of the types that both nodes of a pair have."""


class _Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Scale of an integer tensor: a single scale and zero point for the whole tensor.

    Attributes:
        inputs: Names of both; the zero point may be absent.
        domain: Domain of the nodes with the scale.
        means: The values of both, and the integers' type.
    """

    inputs: tuple[str, ...]
    domain: str
    means: tuple[float, int, str]


def pair_integer_moves(graph: onnx.GraphProto) -> str:
    """Put a pair before and behind each node that moves integers with a known scale.

    Args:
        graph: The graph, its nodes named; changed. Bodies of control flow stay.

    Returns:
        A note of the changes, or "" without such a node.
    """
    index = index_graph(graph)
    scales = _scales(graph, index)
    gone: set[str] = set()
    new: list[tuple[str, onnx.NodeProto]] = []
    for node in graph.node:
        tensors = (*_read(node), *node.output)
        found = [scales.get(name) for name in tensors]
        scale = found[0]
        if not _is_move(node) or scale is None:
            continue
        if any(other is None or other.means != scale.means for other in found):
            continue
        if any(name in index.initializers for name in tensors):
            continue  # a table of integers: in floats it would take four times the room
        gone.add(node.name)
        new += [(node.name, made) for made in _paired(node, scale)]
    if not gone:
        return ""
    replace(graph, gone, new)
    moves = "moves" if len(gone) == 1 else "move"
    return (
        f"{counted(len(gone), 'node')} that {moves} integers stand between pairs now, where "
        "runtimes look for them: the same to the bit."
    )


def _paired(node: onnx.NodeProto, scale: _Scale) -> Iterator[onnx.NodeProto]:
    moved = deepcopy(node)
    make = partial(helper.make_node, domain=scale.domain)
    for place, name in enumerate(_read(node)):
        moved.input[place] = f"{node.name}/floats_{place}"
        label = f"{node.name}/before_{place}"
        yield make("DequantizeLinear", [name, *scale.inputs], [moved.input[place]], name=label)
    for place in range(len(node.output)):
        moved.output[place] = f"{node.name}/moved_{place}"
    yield moved
    for place, name in enumerate(node.output):
        label = f"{node.name}/behind_{place}"
        yield make("QuantizeLinear", [moved.output[place], *scale.inputs], [name], name=label)


def _scales(graph: onnx.GraphProto, index: GraphIndex) -> dict[str, _Scale]:
    """Return the scales by integer tensor; a moving node passes its input's scale on."""
    known: dict[str, _Scale] = {}
    for node in graph.node:
        if facts(node.op_type).is_conversion == "pair":
            scale = _scale_of(node, index)
            if scale is not None:
                integers = node.output if node.op_type == "QuantizeLinear" else node.input
                known.setdefault(integers[0], scale)
    moves = [node for node in graph.node if _is_move(node)]
    for nodes in (moves, moves[::-1]):  # from what is quantized on, and back from what is read
        for node in nodes:
            tensors = (*_read(node), *node.output)
            scale = next((known[name] for name in tensors if name in known), None)
            if scale is not None:
                for name in tensors:
                    known.setdefault(name, scale)
    return known


def _scale_of(node: onnx.NodeProto, index: GraphIndex) -> _Scale | None:
    """Return the scale; None for scales by channel or block, or computed scales."""
    scale = index.constant(node.input[1])
    if scale is None or scale.size != 1 or scale.dtype != np.float32:
        return None
    zero_point: np.ndarray[tuple[int, ...], np.dtype[np.generic]] | None = np.array(0, np.uint8)
    if len(node.input) > 2 and node.input[2]:
        zero_point = index.constant(node.input[2])
    elif node.op_type == "DequantizeLinear":
        return None  # it reads any type
    elif "output_dtype" in attributes(node):
        return None
    if zero_point is None or zero_point.size != 1 or zero_point.dtype.name not in _INTEGERS:
        return None
    return _Scale(
        inputs=tuple(name for name in node.input[1:] if name),
        domain=node.domain,
        means=(float(scale.item()), int(zero_point.item()), zero_point.dtype.name),
    )


def _is_move(node: onnx.NodeProto) -> bool:
    return bool(facts(node.op_type).moves_integers) and not node.domain and not tells_places(node)


def _read(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the tensors that a node moves, without shapes, axes and indices."""
    is_all = facts(node.op_type).moves_integers == "all"
    return tuple(node.input if is_all else node.input[:1])
