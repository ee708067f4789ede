"""Operators that Qualcomm's HTP simulator computes wrongly beside others, and how they are parted.

What is known of it (onnxruntime-qnn 2.7.0), with 16 bits, and not of chips:

- A convolution times the Sigmoid of a convolution, which may be the same (SiLU), is wrong on maps
  of 9 to 12 rows, and on no others: on 10 rows in the first and the last two, by 30 % of the whole.
  In a detector with such maps the output was 8 to 14 % off, now this, now that. Where the
  convolution meets the Sigmoid as a product with 1, each is right to 0.01 %.
- So is the Softplus of a convolution, on the same maps, by 30 to 53 %; a product with 1 between the
  two does not help. As one row it is right to 1 %, as it is on other maps.
- A Tanh of 16 rows is wrong after a matrix product and before a product, by more than its size, and
  now this, now that; of any other number of rows it is right. As one row it is, whatever is beside.
"""

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph.node_chains import producer, replace
from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.passes.workarounds.constants import one_of
from edgepack.packager.passes.workarounds.single_op import type_of

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_WRONG_MAP_ROWS = range(9, 13)
_WRONG_TANH_ROWS = 16


def part_sigmoids(graph: onnx.GraphProto, index: GraphIndex) -> int:
    """Multiplies convolutions that meet a Sigmoid by 1 on their way; returns how many."""
    found = [
        (node, place)
        for node in graph.node
        if (place := _place_of_convolution(index, node)) is not None
    ]
    new: list[tuple[str, onnx.NodeProto]] = []
    for node, place in found:
        source, apart = node.input[place], f"{node.output[0]}/apart"
        element_type = type_of(index, node, source)
        inputs = [source, one_of(graph, element_type)]
        new.append((node.name, helper.make_node("Mul", inputs, [apart], name=f"{node.name}/apart")))
        product = onnx.NodeProto()
        product.CopyFrom(node)
        product.input[place] = apart
        new.append((node.name, product))
        shape = index.shapes[source]
        graph.value_info.append(helper.make_tensor_value_info(apart, element_type, shape))
    replace(graph, {node.name for node, _ in found}, new)
    return len(found)


def _place_of_convolution(index: GraphIndex, node: onnx.NodeProto) -> int | None:
    """Which input of a product is the convolution that a Sigmoid opens and shuts; else None."""
    if node.op_type != "Mul":
        return None
    for place, name in enumerate(node.input):
        sigmoid = producer(index, node.input[1 - place], "Sigmoid")
        if sigmoid is None or not _is_wrong_map(index, name):
            continue
        makers = (producer(index, made, *_CONVOLUTIONS) for made in (name, sigmoid.input[0]))
        if all(maker is not None for maker in makers):
            return place
    return None


def _is_wrong_map(index: GraphIndex, name: str) -> bool:
    shape = index.shapes.get(name, ())
    return len(shape) == 4 and shape[2] in _WRONG_MAP_ROWS


def flatten_softplus(graph: onnx.GraphProto, index: GraphIndex) -> int:
    """Makes one row of what a Softplus of a convolution reads; returns of how many."""
    return _flatten(
        graph,
        index,
        [
            node
            for node in graph.node
            if node.op_type == "Softplus"
            and _is_wrong_map(index, node.input[0])
            and producer(index, node.input[0], *_CONVOLUTIONS) is not None
        ],
    )


def flatten_tanh(graph: onnx.GraphProto, index: GraphIndex) -> int:
    """Makes one row of what a Tanh of 16 rows reads; returns of how many."""

    def is_wrong(shape: Sequence[int | None]) -> bool:
        has_rows = len(shape) > 1 and shape[-2] == _WRONG_TANH_ROWS
        return has_rows and all(size == 1 for size in shape[:-2])

    return _flatten(
        graph,
        index,
        [
            node
            for node in graph.node
            if node.op_type == "Tanh" and is_wrong(index.shapes.get(node.input[0], ()))
        ],
    )


def _flatten(graph: onnx.GraphProto, index: GraphIndex, nodes: Sequence[onnx.NodeProto]) -> int:
    """Lets nodes that work value by value see one row, and makes what it was of that again."""
    new: list[tuple[str, onnx.NodeProto]] = []
    flattened: set[str] = set()
    for node in nodes:
        sizes = index.shapes[node.input[0]]
        if None in sizes:
            continue
        shape = [size or 0 for size in sizes]
        element_type = type_of(index, node, node.input[0])
        flat, row = f"{node.name}/flat", f"{node.name}/row"
        for name, to in ((flat, [1, -1]), (row, shape)):
            whole = [1, math.prod(shape)]
            graph.value_info.append(helper.make_tensor_value_info(name, element_type, whole))
            values = np.array(to, dtype=np.int64)
            graph.initializer.append(numpy_helper.from_array(values, f"{name}/shape"))
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        inner.input[0], inner.output[0] = flat, row
        flattened.add(node.name)
        for made in (
            helper.make_node("Reshape", [node.input[0], f"{flat}/shape"], [flat], name=flat),
            inner,
            helper.make_node("Reshape", [row, f"{row}/shape"], list(node.output), name=row),
        ):
            new.append((node.name, made))
    replace(graph, flattened, new)
    return len(flattened)
