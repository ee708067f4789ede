"""SmoothQuant: outliers of activations move into the weights that read the activations.

Transformers have a few channels with activations ten or a hundred times larger than all others; a
single scale per tensor then leaves the others few steps. Before each matrix product with constant
weights, channel j of the input is divided by s_j and row j of the weights multiplied by s_j:

    s_j = max|X_j| ** alpha / max|W_j| ** (1 - alpha)

(Xiao et al., "SmoothQuant", 2023, equation 4). `channel_division` defines the dividing nodes and
their cost.

Division of tensors' channels in a graph, with the factor multiplied into the reading weights.

The division is free if the producing node absorbs the divisors: the scale and bias of a
LayerNormalization, a Mul or Add with a constant, a Gemm. If others read the same tensor (a residual
connection), all nodes but the last are made twice, once for the products: a Mul after the tensor
would come too late for a quantized tensor. If no node can absorb the divisors, an explicit Mul
divides, only if the channels differ enough.
"""

from copy import deepcopy
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgepack.packager.graph.edits import drop_unread, refill
from edgepack.packager.graph.queries import GraphIndex, attribute, index_graph, is_standard
from edgepack.packager.graph.shape_inference import add_shapes
from edgepack.packager.quantization.channels import ChannelAxis, Channels, channel_maxima
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Floats

_WORTH_A_NODE = 4.0
"""An explicit Mul must divide a channel that is this many times the median channel."""

_TAKES_OVER = frozenset({"LayerNormalization", "Mul", "Add", "Gemm", "MatMul"})


class ProductGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Matrix products with constant weights that read the same tensor.

    Attributes:
        tensor: The tensor, channels on its last axis.
        rank: Its number of axes.
        readers: Positions of the products.
        reshapes: Positions of the Reshapes between, which leave the last axis unchanged.
    """

    tensor: str
    rank: int
    readers: tuple[int, ...]
    reshapes: tuple[int, ...]


class ChannelDivision:
    """Changes a copy of the indexed graph; positions in the index stay the positions of `_nodes`.

    Args:
        model: The copy; changed in `finish`.
        index: Index of the original graph.

    Attributes:
        explicit: How many tensors a Mul of their own divides.
    """

    def __init__(self, model: onnx.ModelProto, index: GraphIndex) -> None:
        self._model = model
        self._index = index
        self._nodes = list(model.graph.node)
        self._before: dict[int, list[onnx.NodeProto]] = {}
        self._current: dict[str, Floats] = {}
        self._divided: dict[str, str] = {}
        self.explicit = 0

    def move(
        self, group: ProductGroup, divisors: Channels, maxima: dict[str, Channels]
    ) -> float | None:
        """Move a group's divisors.

        Args:
            group: The products.
            divisors: A divisor per channel of the tensor that the products read.
            maxima: Greatest magnitude of each channel, by tensor.

        Returns:
            Reduction of the spread of the channels; None if the group was left unchanged.
        """
        smoothed = self._divide(group.tensor, divisors, alone=self._is_alone(group))
        before = _spread(maxima[group.tensor])
        if smoothed is None:
            if before < _WORTH_A_NODE:
                return None
            smoothed = self._divide_explicitly(group, divisors)
            self.explicit += 1
        carried = {group.tensor: smoothed}
        for position in group.reshapes if smoothed != group.tensor else ():
            self._carry(position, carried)
        for position in group.readers:
            node = self._nodes[position]
            node.input[0] = carried.get(node.input[0], node.input[0])
            rows = divisors[:, None] if not attribute(node, "transB") else divisors[None, :]
            self._scale(node, 1, rows)
        return before / max(_spread(maxima[group.tensor] / divisors), 1e-12)

    def finish(self) -> None:
        """Put the nodes and constants into the model."""
        graph = self._model.graph
        ordered = [
            node
            for position, own in enumerate(self._nodes)
            for node in (*self._before.get(position, ()), own)
        ]
        refill(graph.node, ordered)
        for name in tuple(self._current):
            values = self._current.pop(name)  # twice the size of what becomes of it
            graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
        drop_unread(graph)
        known = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
        for name, original in self._divided.items():
            if original in known:
                known[name] = onnx.ValueInfoProto(name=name, type=known[original].type)
        add_shapes(self._model, known.values())

    def _is_alone(self, group: ProductGroup) -> bool:
        """Return True if only the group reads its tensor, through any Reshape."""
        between = [self._index.graph.node[position].output[0] for position in group.reshapes]
        known = {*group.readers, *group.reshapes}
        return all(
            self._is_inner(name) and known.issuperset(self._index.consumers[name])
            for name in (group.tensor, *between)
        )

    def _carry(self, position: int, carried: dict[str, str]) -> None:
        """Make a Reshape twice, once for the divided tensor."""
        node = deepcopy(self._index.graph.node[position])
        node.input[0] = carried[node.input[0]]
        carried[node.output[0]] = f"{node.output[0]}/smoothed"
        self._divided[carried[node.output[0]]] = node.output[0]
        node.name, node.output[0] = f"{node.name}/smoothed", carried[node.output[0]]
        self._before.setdefault(position, []).append(node)

    def _is_inner(self, name: str) -> bool:
        return name not in self._index.outputs and name not in self._index.body_reads

    def _divide(self, name: str, divisors: Channels, *, alone: bool) -> str | None:
        """Divide a tensor by its producing node.

        Args:
            name: The tensor.
            divisors: A divisor per channel (last axis).
            alone: Whether nobody else reads the tensor; otherwise the node is made twice.

        Returns:
            The divided tensor, or None where the node cannot.
        """
        position = self._index.producers.get(name)
        if position is None:
            return None
        node = self._index.graph.node[position]
        if node.op_type not in _TAKES_OVER or not self._can_take_over(node, divisors, alone):
            return None
        data = next(n for n in node.input if n not in self._index.initializers)
        divided: str | None = data
        if node.op_type == "Add":
            is_only = len(self._index.consumers[data]) == 1 and self._is_inner(data)
            divided = self._divide(data, divisors, alone=alone and is_only)
            if divided is None:
                return None
        target = self._nodes[position] if alone else self._make_twice(position, name)
        for i, read in enumerate(node.input):
            if read == data:
                target.input[i] = divided
            else:
                factor = 1.0 / divisors
                if i == 1 and attribute(node, "transB"):
                    factor = factor[:, None]
                self._scale(target, i, factor)
        return str(target.output[0])

    def _make_twice(self, position: int, name: str) -> onnx.NodeProto:
        before = self._before.setdefault(position, [])
        label = "smoothed" if not before else f"smoothed{len(before)}"
        node: onnx.NodeProto = deepcopy(self._index.graph.node[position])
        node.name = f"{node.name}/{label}"
        node.output[0] = f"{name}/{label}"
        before.append(node)
        self._divided[node.output[0]] = name
        return node

    def _can_take_over(self, node: onnx.NodeProto, divisors: Channels, alone: bool) -> bool:
        constants = [name for name in node.input if name in self._index.initializers]
        if len(constants) != len(node.input) - 1:
            return False
        if node.op_type in ("Mul", "Add"):
            shape = self._index.shapes[constants[0]]
            return self._index.is_float(constants[0]) and (
                not shape or shape[-1] in (1, len(divisors))
            )
        if node.op_type == "LayerNormalization":
            last = len(self._index.shapes.get(node.input[0], ())) - 1
            return attribute(node, "axis", -1) in (-1, last)
        return alone and node.input[0] not in constants  # made twice it costs more than a Mul

    def _divide_explicitly(self, group: ProductGroup, divisors: Channels) -> str:
        output = f"{group.tensor}/smoothed"
        self._divided[output] = group.tensor
        factor = f"{group.tensor}/smoothing"
        self._current[factor] = 1.0 / divisors
        node = helper.make_node("Mul", [group.tensor, factor], [output], name=output)
        first = self._index.consumers[group.tensor][0]
        self._before.setdefault(first, []).append(node)
        return output

    def _scale(self, node: onnx.NodeProto, number: int, factor: Floats) -> None:
        """Multiply a constant input of a node; other readers keep the old constant."""
        name = f"{node.name}/smoothed_{number}"
        if name not in self._current:
            self._current[name] = self._index.values(node.input[number]).astype(np.float64)
            node.input[number] = name
        self._current[name] = self._current[name] * factor


def _spread(channels: Channels) -> float:
    return float(channels.max() / max(float(np.median(channels)), 1e-12))


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
