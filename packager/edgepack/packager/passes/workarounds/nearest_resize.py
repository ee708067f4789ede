"""Writes a nearest Resize in a way whose indices no provider can take otherwise.

Of the coordinate transformations and roundings that ONNX has, Qualcomm's HTP simulator
(onnxruntime-qnn 2.7.0) computes many as another one: half pixels with `floor`, for one, and sizes
that a scale does not give whole. Which row and column each output takes is asked of ONNX Runtime.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
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
from edgepack.packager.passes.workarounds.run_node import run_alone

_PLAIN = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
Indices = npt.NDArray[np.int64]


def rewrite_nearest_resize(
    graph: onnx.GraphProto, index: GraphIndex, opsets: Mapping[str, int], folder: Path
) -> int:
    """Rewrites each nearest Resize that is not plain.

    Plain is `asymmetric` with `floor` where output i takes i * inputs // outputs. Another one that
    takes the same, by whole factors, becomes plain; what is left becomes a Gather for each axis.

    Args:
        graph: The graph, with shapes; changed.
        index: Of this graph.
        opsets: Version of each domain.
        folder: For models of one node.

    Returns:
        How many were rewritten.
    """
    gone: set[str] = set()
    new: list[tuple[str, onnx.NodeProto]] = []
    for node in graph.node:
        taken = _taken(index, node, opsets, folder)
        if taken is None:
            continue
        sizes = index.shapes[node.input[0]]
        is_whole, takes_plain = True, True
        for axis, indices in taken.items():
            before, after = sizes[axis] or 0, len(indices)
            is_whole &= before % after == 0 or after % before == 0
            takes_plain &= np.array_equal(indices, np.arange(after) * before // after)
        if takes_plain and (is_whole or _is_plain(node)):
            if _is_plain(node):
                continue
            made = [_plain(node)]
        else:
            made = _gathers(graph, index, node, taken)
        gone.add(node.name)
        new.extend((node.name, one) for one in made)
    replace(graph, gone, new)
    return len(gone)


def _taken(
    index: GraphIndex, node: onnx.NodeProto, opsets: Mapping[str, int], folder: Path
) -> dict[int, Indices] | None:
    """Which index each output takes along each axis that changes; None for what is none of ours."""
    if not is_plainly_sized(node) or text_of(node, "mode") != "nearest":
        return None
    before, after = index.shapes.get(node.input[0]), index.shapes.get(node.output[0])
    if before is None or after is None or None in (*before, *after):
        return None
    place = SIZES if len(node.input) > SIZES and node.input[SIZES] else SCALES
    given = index.constant(node.input[place])
    if given is None:
        return None
    taken: dict[int, Indices] = {}
    for axis, (size, resized) in enumerate(zip(before, after, strict=True)):
        if not size or not resized or (size == resized and given[axis] in (1, size)):
            continue
        alone = onnx.NodeProto()
        alone.CopyFrom(node)
        del alone.input[:]
        alone.input.extend(["x", *[""] * (place - 1), "given"])
        shape = np.ones(len(before), dtype=np.int64)
        ones = shape.astype(given.dtype)
        shape[axis], ones[axis] = size, given[axis]
        ramp = np.arange(size, dtype=np.float32).reshape(shape)
        made = run_alone(alone, {"x": ramp, "given": ones}, opsets, folder)
        taken[axis] = made.reshape(-1).astype(np.int64)
    return taken


def _is_plain(node: onnx.NodeProto) -> bool:
    return all(text_of(node, name) == value for name, value in _PLAIN.items())


def _plain(node: onnx.NodeProto) -> onnx.NodeProto:
    made = onnx.NodeProto()
    made.CopyFrom(node)
    kept = [attribute for attribute in made.attribute if attribute.name not in _PLAIN]
    del made.attribute[:]
    made.attribute.extend(kept)
    made.attribute.extend(helper.make_attribute(name, value) for name, value in _PLAIN.items())
    return made


def _gathers(
    graph: onnx.GraphProto, index: GraphIndex, node: onnx.NodeProto, taken: Mapping[int, Indices]
) -> list[onnx.NodeProto]:
    """A Gather for each axis; an axis at a time, so that what lies between has a shape too."""
    made: list[onnx.NodeProto] = []
    source, shape = node.input[0], list(index.shapes[node.input[0]])
    for axis, indices in taken.items():
        name = f"{node.name}/axis{axis}"
        graph.initializer.append(numpy_helper.from_array(indices, f"{name}/indices"))
        made.append(
            helper.make_node("Gather", [source, f"{name}/indices"], [name], name=name, axis=axis)
        )
        source, shape[axis] = name, len(indices)
        graph.value_info.append(
            helper.make_tensor_value_info(name, index.types[node.input[0]], shape)
        )
    del graph.value_info[-1]
    made[-1].output[0] = node.output[0]
    return made
