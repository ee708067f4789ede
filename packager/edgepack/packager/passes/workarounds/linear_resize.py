"""Writes a linear Resize whose scale gives no whole size so that no provider takes another scale.

ONNX computes by the scale that it is given: half of 13 rows are 6, each from two rows. Qualcomm's
HTP simulator (onnxruntime-qnn 2.7.0) computes by the sizes, 6 / 13, and is 30 to 110 % off. Where
the last row is repeated until the scale gives a whole size, both are the same, and what is too much
is cut off again.
"""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph.node_chains import replace
from edgepack.packager.graph.queries import GraphIndex
from edgepack.packager.passes.workarounds.resize_settings import (
    SCALES,
    SIZES,
    is_plainly_sized,
    text_of,
)

_BY_SCALE = ("half_pixel", "pytorch_half_pixel", "asymmetric")
"""Transformations that do not ask how long the axis is."""

_MOST_REPEATED = 16
_WHOLE = 1e-4


def rewrite_linear_resize(graph: onnx.GraphProto, index: GraphIndex) -> int:
    """Rewrites each linear Resize whose scales give sizes that are not whole; returns how many."""
    gone: set[str] = set()
    new: list[tuple[str, onnx.NodeProto]] = []
    for node in graph.node:
        longer = _longer(index, node)
        if longer is not None:
            gone.add(node.name)
            new.extend((node.name, made) for made in _rewrite(graph, index, node, *longer))
    replace(graph, gone, new)
    return len(gone)


def _longer(index: GraphIndex, node: onnx.NodeProto) -> tuple[list[int], list[int]] | None:
    """Sizes before and after of which each is whole; None where they are, or none are found."""
    if not is_plainly_sized(node) or text_of(node, "mode") != "linear":
        return None
    is_scaled = len(node.input) <= SIZES or not node.input[SIZES]
    scales = index.constant(node.input[SCALES]) if len(node.input) > SCALES else None
    before, after = index.shapes.get(node.input[0]), index.shapes.get(node.output[0])
    if not is_scaled or scales is None or before is None or after is None:
        return None
    if text_of(node, "coordinate_transformation_mode") not in _BY_SCALE:
        return None
    whole = [(size, size) for size in before if size]
    for axis, (size, scale) in enumerate(zip(before, scales.tolist(), strict=True)):
        fitting = (n for n in range(size or 0, (size or 0) + _MOST_REPEATED) if _is_whole(n, scale))
        if not size or not after[axis] or (longer := next(fitting, None)) is None:
            return None
        whole[axis] = (longer, round(longer * scale))
    sizes = [size for size, _ in whole], [size for _, size in whole]
    return None if sizes[0] == list(before) else sizes


def _is_whole(size: int, scale: float) -> bool:
    return abs(size * scale - round(size * scale)) < _WHOLE


def _rewrite(
    graph: onnx.GraphProto,
    index: GraphIndex,
    node: onnx.NodeProto,
    before: list[int],
    after: list[int],
) -> list[onnx.NodeProto]:
    """Pad, Resize and Slice."""
    source, name = node.input[0], node.name
    known = [size or 0 for size in index.shapes[source]]
    kept = [size or 0 for size in index.shapes[node.output[0]]]
    axes = [axis for axis, size in enumerate(known) if size != before[axis]]

    def constant(word: str, values: list[int]) -> str:
        tensor = numpy_helper.from_array(np.array(values, dtype=np.int64), f"{name}/{word}")
        graph.initializer.append(tensor)
        return tensor.name

    def tensor(word: str, shape: list[int]) -> str:
        value = helper.make_tensor_value_info(f"{name}/{word}", index.types[source], shape)
        graph.value_info.append(value)
        return value.name

    repeated, resized = tensor("repeated", before), tensor("resized", after)
    pads = constant("pads", [0] * len(known) + [n - m for n, m in zip(before, known, strict=True)])
    resize = onnx.NodeProto()
    resize.CopyFrom(node)
    resize.input[:] = [repeated, "", "", constant("sizes", after)]
    resize.output[:] = [resized]
    cut = [
        resized,
        constant("starts", [0] * len(axes)),
        constant("ends", [kept[axis] for axis in axes]),
        constant("axes", axes),
    ]
    return [
        helper.make_node("Pad", [source, pads], [repeated], name=repeated, mode="edge"),
        resize,
        helper.make_node("Slice", cut, [node.output[0]], name=f"{name}/cut"),
    ]
