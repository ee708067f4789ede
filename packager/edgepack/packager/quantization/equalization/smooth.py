"""SmoothQuant: outliers of activations move into the weights that read the activations.

Transformers have a few channels with activations ten or a hundred times larger than all others; a
single scale per tensor then leaves the others few steps. Before each matrix product with constant
weights, channel j of the input is divided by s_j and row j of the weights multiplied by s_j:

    s_j = max|X_j| ** alpha / max|W_j| ** (1 - alpha)

(Xiao et al., "SmoothQuant", 2023, equation 4). `channel_division` defines the dividing nodes and
their cost.
"""

from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx

from edgepack.packager.graph.queries import GraphIndex, attribute, index_graph, is_standard
from edgepack.packager.quantization.channels import ChannelAxis, Channels, channel_maxima
from edgepack.packager.quantization.equalization.channel_division import (
    ChannelDivision,
    ProductGroup,
)
from edgepack.packager.tensors.sequence import Samples

_LEAST, _MOST = 1e-3, 1e3
"""Bounds of s_j, for channels that are (nearly) never used."""


def can_smooth(index: GraphIndex) -> bool:
    """Return True if a graph has matrix products with constant weights."""
    return bool(_groups(index))


def smooth(
    model: onnx.ModelProto, alpha: float, samples: Samples, work_dir: Path
) -> tuple[onnx.ModelProto, str]:
    """Smooth a model; its outputs stay the same up to float rounding.

    Args:
        model: The float model with shapes; not changed.
        alpha: Share of the difficulty that moves into the weights, 0…1.
        samples: Calibration samples, for the greatest magnitude of each channel.
        work_dir: Existing folder for the instrumented model.

    Returns:
        The smoothed model, and a note with numbers.
    """
    index = index_graph(model.graph)
    groups = _groups(index)
    maxima = channel_maxima(
        model,
        [ChannelAxis(group.tensor, group.rank, group.rank - 1) for group in groups],
        samples,
        work_dir / "channels.onnx",
    )
    result = deepcopy(model)
    smoothing = ChannelDivision(result, index)
    ratios = [
        smoothing.move(group, _divisors(index, group, maxima[group.tensor], alpha), maxima)
        for group in groups
    ]
    smoothing.finish()
    done = [ratio for ratio in ratios if ratio is not None]
    median = float(np.median(done)) if done else 1.0
    return result, (
        f"SmoothQuant (alpha {alpha:g}): {len(done)} of {len(groups)} inputs of matrix products "
        f"smoothed, {smoothing.explicit} of them by an extra Mul; their greatest value over the "
        f"median channel's is {median:.1f} times smaller (median)."
    )


def _groups(index: GraphIndex) -> list[ProductGroup]:
    readers: dict[str, list[int]] = {}
    reshapes: dict[str, dict[int, None]] = {}
    for position, node in enumerate(index.graph.node):
        if _is_product(index, node):
            path = _path(index, node.input[0])
            root = index.graph.node[path[-1]].input[0] if path else node.input[0]
            readers.setdefault(root, []).append(position)
            reshapes.setdefault(root, {}).update(dict.fromkeys(path))
    return [
        ProductGroup(
            tensor=name,
            rank=len(index.shapes[name]),
            readers=tuple(positions),
            reshapes=tuple(sorted(reshapes[name])),
        )
        for name, positions in readers.items()
    ]


def _path(index: GraphIndex, name: str) -> list[int]:
    """Return the Reshapes behind a tensor that leave its last axis unchanged, the nearest first."""
    path: list[int] = []
    while (position := index.producers.get(name)) is not None:
        node = index.graph.node[position]
        before, after = index.shapes.get(node.input[0], ()), index.shapes[name]
        if node.op_type != "Reshape" or not before or None in (before[-1], after[-1]):
            break
        if before[-1] != after[-1]:
            break
        path.append(position)
        name = node.input[0]
    return path


def _is_product(index: GraphIndex, node: onnx.NodeProto) -> bool:
    if node.op_type not in ("MatMul", "Gemm") or not is_standard(node):
        return False
    data, weight = node.input[0], node.input[1]
    if data in index.initializers or data not in index.shapes or not index.is_float(data):
        return False
    if weight not in index.initializers or len(index.shapes[weight]) != 2:
        return False
    return index.shapes[data] != () and not attribute(node, "transA")


def _divisors(index: GraphIndex, group: ProductGroup, data: Channels, alpha: float) -> Channels:
    """Return s_j of a group: all its products share an input, so their weights count together."""
    weights = np.zeros_like(data)
    for position in group.readers:
        node = index.graph.node[position]
        matrix = index.values(node.input[1]).astype(np.float64)
        rows = np.abs(matrix).max(axis=0 if attribute(node, "transB") else 1)
        weights = np.maximum(weights, rows)
    used = (data > 0) & (weights > 0)
    exact = np.where(used, data, 1.0) ** alpha / np.where(used, weights, 1.0) ** (1.0 - alpha)
    return np.where(used, np.clip(exact, _LEAST, _MOST), 1.0)
