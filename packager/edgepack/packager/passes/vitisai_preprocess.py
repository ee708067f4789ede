"""Pass `vitisai_preprocess`: replacement of exported chains by operators of AMD's NPUs.

HardSwish is a single operator; exporters write four, and each would be rounded. A ReduceMean over
height and width is a GlobalAveragePool: the ReduceMean leaves the NPU, the pooling stays (AMD Quark
does the same, `convert_reduce_mean_to_global_avg_pool`). A ReduceMean over a large map is split,
see `large_pools.py`.

Splits averages over maps that are too large for an NPU's pooling into poolings that fit.

The mean of the means of parts is the mean if all parts have the same size: so the parts' height and
width must divide the map's.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph.node_chains import reduced_axes, replace
from edgepack.packager.graph.queries import GraphIndex, attribute, index_graph, is_standard
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.passes.context import PassContext, PassResult
from edgepack.packager.passes.gelu import fuse_hard_swish
from edgepack.packager.profiles.pass_settings import VitisAiPreprocess
from edgepack.text import counted


def vitisai_preprocess(
    model: onnx.ModelProto, settings: VitisAiPreprocess, context: PassContext
) -> PassResult:
    """Replace the formula of HardSwish, and means over height and width by poolings.

    Args:
        model: The model, with shapes; changed in place.
        settings: The pass's settings (none).
        context: See `PassContext`.

    Returns:
        The model, and notes of the replacements.
    """
    swish = fuse_hard_swish(model)
    notes = [swish] if swish else []
    index = index_graph(model.graph)
    found = [node for node in model.graph.node if _is_global_average(index, node)]
    new: list[tuple[str, onnx.NodeProto]] = []
    for node in found:
        new.extend((node.name, made) for made in _pooling(model.graph, node))
    if found:
        replace(model.graph, {node.name for node in found}, new)
        notes.append(f"{len(found)} ReduceMean over height and width became GlobalAveragePool.")
    notes += split_large_pools(model)
    add_shapes(model)
    return PassResult(model=model, notes=tuple(notes))


def _is_global_average(index: GraphIndex, node: onnx.NodeProto) -> bool:
    if node.op_type != "ReduceMean" or len(index.shapes.get(node.input[0], ())) != 4:
        return False
    return sorted(axis % 4 for axis in reduced_axes(index, node)) == [2, 3]


def _pooling(graph: onnx.GraphProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    name = f"{node.name}/GlobalAveragePool"
    keeps = attribute(node, "keepdims", 1)
    pooled = node.output[0] if keeps else f"{node.output[0]}/pooled"
    pool = helper.make_node("GlobalAveragePool", [node.input[0]], [pooled], name=name)
    if keeps:
        return [pool]
    axes = f"{node.name}/squeezed_axes"
    graph.initializer.append(numpy_helper.from_array(np.array([2, 3], dtype=np.int64), axes))
    squeeze = helper.make_node(
        "Squeeze", [pooled, axes], [node.output[0]], name=f"{node.name}/Squeeze"
    )
    return [pool, squeeze]


MOST_POOLED = 512
"""So many values one pooling averages at most: what AMD Quark leaves whole in a
`GlobalAveragePool` (`split_large_kernel_pool`, quark/onnx/optimize.py)."""


def split_large_pools(model: onnx.ModelProto) -> tuple[str, ...]:
    """Put an AveragePool, or several, before each GlobalAveragePool over a large map.

    Args:
        model: The model, with shapes; changed in place.

    Returns:
        Notes of split poolings, and of maps that are too large and have no suitable divisors.
    """
    index = index_graph(model.graph)
    new: list[tuple[str, onnx.NodeProto]] = []
    split, whole = [], []
    for node in model.graph.node:
        size = _map_size(index, node)
        if size is None or size[0] * size[1] <= MOST_POOLED:
            continue
        steps = divide_map(*size)
        if not steps:
            whole.append(f"{node.name} ({size[0]} x {size[1]})")
            continue
        split.append(node.name)
        new.extend((node.name, made) for made in _poolings(node, steps))
    notes = []
    if split:
        replace(model.graph, set(split), new)
        notes.append(
            f"Split into poolings that fit: {counted(len(split), 'average')} over maps of more "
            f"than {MOST_POOLED} values."
        )
    if whole:
        notes.append(
            f"Not split: {counted(len(whole), 'average')} over maps of more than {MOST_POOLED} "
            f"values, since no size that fits divides them; the NPU may leave them: "
            f"{', '.join(whole)}."
        )
    return tuple(notes)


def divide_map(height: int, width: int) -> list[tuple[int, int]]:
    """Return kernels (height, width) of poolings that leave a map small enough for the last
    average.

    Args:
        height, width: Of the map.

    Returns:
        As even and as square as sizes allow; none where no sizes divide the map so.
    """
    steps: list[tuple[int, int]] = []
    while height * width > MOST_POOLED:
        kernels = list(_kernels(height, width))
        if not kernels:
            return []
        rows, columns = min(kernels, key=partial(_unevenness, height * width))
        steps.append((rows, columns))
        height, width = height // rows, width // columns
    return steps


def _unevenness(area: int, kernel: tuple[int, int]) -> tuple[int, int, tuple[int, int]]:
    """Return the larger of a kernel's averaged values and its number of windows, and its longer
    side.
    """
    averaged = kernel[0] * kernel[1]
    return max(averaged, area // averaged), max(kernel), kernel


def _kernels(height: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield kernels that divide a map and average more than a single value, and not too many."""
    for rows in (size for size in range(1, height + 1) if height % size == 0):
        for columns in (size for size in range(1, width + 1) if width % size == 0):
            if 1 < rows * columns <= MOST_POOLED:
                yield rows, columns


def _map_size(index: GraphIndex, node: onnx.NodeProto) -> tuple[int, int] | None:
    """Return height and width of a GlobalAveragePool's map; None for others and unknown sizes."""
    if node.op_type != "GlobalAveragePool" or not is_standard(node):
        return None
    shape = index.shapes.get(node.input[0], ())
    if len(shape) != 4 or shape[2] is None or shape[3] is None:
        return None
    return shape[2], shape[3]


def _poolings(node: onnx.NodeProto, steps: list[tuple[int, int]]) -> list[onnx.NodeProto]:
    made: list[onnx.NodeProto] = []
    current = node.input[0]
    for number, kernel in enumerate(steps, start=1):
        pooled = f"{node.output[0]}/part_{number}"
        name = f"{node.name}/AveragePool_{number}"
        part = helper.make_node(
            "AveragePool", [current], [pooled], name=name, kernel_shape=kernel, strides=kernel
        )
        made.append(part)
        current = pooled
    made.append(helper.make_node("GlobalAveragePool", [current], list(node.output), name=node.name))
    return made
