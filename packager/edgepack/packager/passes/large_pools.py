"""Splits averages over maps that are too large for an NPU's pooling into poolings that fit.

The mean of the means of parts is the mean if all parts have the same size: so the parts' height and
width must divide the map's.
"""

from collections.abc import Iterator
from functools import partial

import onnx
from onnx import helper

from edgepack.packager.graph.node_chains import replace
from edgepack.packager.graph.queries import GraphIndex, index_graph, is_standard
from edgepack.text import counted

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
