"""Cross-layer equalization: channels of two layers in a row get ranges of one size.

Where a convolution follows another, channel i of the first layer's output may be divided by any
positive s_i and the second layer's weights that read it multiplied by the same; with

    s_i = sqrt(max|W1_i| / max|W2_i|)

both layers' weights reach equally far in that channel, so that one scale a tensor fits all of
them (Nagel et al., "Data-Free Quantization", 2019, equation 11). Between the two may stand what a
positive factor passes through: ReLU, PRelu, LeakyRelu, poolings. A Clip (ReLU6) stops it, since its
bound would have to differ by channel: such pairs are counted in the note and left.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from edgepack.packager.graph.questions import GraphIndex, index_graph, used_names

_PASSES_A_FACTOR = frozenset(
    {"Relu", "LeakyRelu", "PRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}
)
_ROUNDS = 20
_SETTLED = 1e-3
_LEAST, _MOST = 1e-4, 1e4

_Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Two layers in a row, by their positions in the graph."""

    first: int
    second: int


def can_equalize(index: GraphIndex) -> bool:
    """Whether a graph has two layers in a row that can be equalized."""
    return bool(_find_pairs(index)[0])


def equalize(model: onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """Equalizes a model; it computes what it did, give or take float rounding.

    Args:
        model: The float model with shapes; not changed.

    Returns:
        The equalized model, or the model itself where nothing can be; and a note with numbers.
    """
    index = index_graph(model.graph)
    pairs, clipped = _find_pairs(index)
    skipped = f"; {clipped} left because a Clip stands between" if clipped else ""
    if not pairs:
        return model, f"Cross-layer equalization: no layers in a row{skipped}."
    layers = {position: _Layer(index, position) for pair in pairs for position in _both(pair)}
    before = _median_unevenness(layers, pairs)
    for _ in range(_ROUNDS):
        moved = max(_equalize_pair(layers, pair) for pair in pairs)
        if moved < _SETTLED:
            break
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for position, layer in layers.items():
        layer.store(result.graph, position)
    _drop_unread(result.graph)
    return result, (
        f"Cross-layer equalization: {len(pairs)} pairs of layers{skipped}; the greatest weight of "
        f"a tensor over its median channel's went from {before:.1f} to "
        f"{_median_unevenness(layers, pairs):.1f} (median)."
    )


def _both(pair: _Pair) -> tuple[int, int]:
    return pair.first, pair.second


def _find_pairs(index: GraphIndex) -> tuple[list[_Pair], int]:
    """The pairs, and how many a Clip stopped."""
    pairs: list[_Pair] = []
    clipped = 0
    for position, node in enumerate(index.graph.node):
        if not _has_constant_weights(index, node):
            continue
        current = node.output[0]
        while (reader := _only_reader(index, current)) is not None:
            following = index.graph.node[reader]
            if _passes_a_factor(index, following, current):
                current = following.output[0]
                continue
            if following.op_type == "Clip":
                after = _only_reader(index, following.output[0])
                clipped += after is not None and _reads(index, after, following.output[0])
            elif _reads(index, reader, current) and _channels_meet(index, node, following):
                pairs.append(_Pair(first=position, second=reader))
            break
    return pairs, clipped


def _has_constant_weights(index: GraphIndex, node: onnx.NodeProto) -> bool:
    if node.op_type not in ("Conv", "Gemm") or node.domain not in ("", "ai.onnx"):
        return False
    scaled = any(e.name in ("alpha", "beta") and e.f != 1.0 for e in node.attribute)
    turned = any(e.name == "transA" and e.i for e in node.attribute)
    constants = list(node.input[1:])
    return (
        not scaled
        and not turned
        and all(name in index.initializers and index.is_float(name) for name in constants)
        and (len(constants) == 1 or len(index.shapes[constants[1]]) == 1)
    )


def _only_reader(index: GraphIndex, name: str) -> int | None:
    readers = index.consumers.get(name, [])
    if len(readers) != 1 or name in index.outputs or name in index.body_reads:
        return None
    return readers[0]


def _passes_a_factor(index: GraphIndex, node: onnx.NodeProto, name: str) -> bool:
    if node.op_type not in _PASSES_A_FACTOR or node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "MaxPool" and len(node.output) > 1:
        return False
    return node.input[0] == name and all(n in index.initializers for n in node.input[1:])


def _reads(index: GraphIndex, position: int, name: str) -> bool:
    node = index.graph.node[position]
    return node.input[0] == name and _has_constant_weights(index, node)


def _channels_meet(index: GraphIndex, first: onnx.NodeProto, second: onnx.NodeProto) -> bool:
    """Whether output channels of the first are input channels of the second, one to one."""
    if first.op_type != second.op_type:
        return False  # a Flatten stands between a Conv and a Gemm and spreads the channels
    made, _ = _sizes(index, first)
    _, read = _sizes(index, second)
    return made == read * _groups(second)


def _sizes(index: GraphIndex, node: onnx.NodeProto) -> tuple[int | None, int]:
    """Outputs, and inputs of a group."""
    outputs, inputs = index.shapes[node.input[1]][:2]
    if node.op_type == "Gemm" and not _is_turned(node):
        outputs, inputs = inputs, outputs
    return outputs, inputs or 0


def _is_turned(node: onnx.NodeProto) -> bool:
    return any(entry.name == "transB" and entry.i for entry in node.attribute)


def _groups(node: onnx.NodeProto) -> int:
    return next((int(entry.i) for entry in node.attribute if entry.name == "group"), 1)


class _Layer:
    """The weights and bias of one layer, by channel."""

    def __init__(self, index: GraphIndex, position: int) -> None:
        self._node = index.graph.node[position]
        values = index.constant(self._node.input[1])
        bias = index.constant(self._node.input[2]) if len(self._node.input) > 2 else None
        if values is None:
            raise KeyError(f"{self._node.input[1]} is no initializer")
        self._stored = values.astype(np.float64)
        outputs_last = self._node.op_type == "Gemm" and not _is_turned(self._node)
        self._weights = self._stored.T if outputs_last else self._stored  # (outputs, inputs, …)
        self._bias = None if bias is None else bias.astype(np.float64)
        self._groups = _groups(self._node)

    def output_maxima(self) -> _Weights:
        """Greatest magnitude of the weights that make each output channel."""
        reach: _Weights = np.abs(self._weights).reshape(len(self._weights), -1).max(axis=1)
        return reach

    def input_maxima(self) -> _Weights:
        """Greatest magnitude of the weights that read each input channel."""
        reach: _Weights = np.abs(self._by_input()).max(axis=(1, 3)).reshape(-1)
        return reach

    def divide_outputs(self, factors: _Weights) -> None:
        """Divides each output channel."""
        self._weights /= factors.reshape(-1, *[1] * (self._weights.ndim - 1))
        if self._bias is not None:
            self._bias = self._bias / factors

    def multiply_inputs(self, factors: _Weights) -> None:
        """Multiplies what reads each input channel."""
        scaled = self._by_input() * factors.reshape(self._groups, 1, -1, 1)
        self._weights[...] = scaled.reshape(self._weights.shape)

    def _by_input(self) -> _Weights:
        """(groups, outputs of a group, inputs of a group, kernel)."""
        outputs, inputs = self._weights.shape[:2]
        return self._weights.reshape(self._groups, outputs // self._groups, inputs, -1)

    def store(self, graph: onnx.GraphProto, position: int) -> None:
        """Writes the layer into a graph, under names of its own: others may read the old ones."""
        node = graph.node[position]
        for number, values in ((1, self._stored), (2, self._bias)):
            if values is not None:
                name = f"{node.name}/equalized_{number}"
                node.input[number] = name
                graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))


def _equalize_pair(layers: dict[int, _Layer], pair: _Pair) -> float:
    """Equalizes one pair.

    Returns:
        The largest change of a channel, as a logarithm: 0 where nothing was left to do.
    """
    first, second = layers[pair.first], layers[pair.second]
    made, read = first.output_maxima(), second.input_maxima()
    used = (made > 0) & (read > 0)
    ratio = np.sqrt(np.where(used, made, 1.0) / np.where(used, read, 1.0))
    factors = np.where(used, np.clip(ratio, _LEAST, _MOST), 1.0)
    first.divide_outputs(factors)
    second.multiply_inputs(factors)
    return float(np.abs(np.log(factors)).max())


def _median_unevenness(layers: dict[int, _Layer], pairs: list[_Pair]) -> float:
    """Greatest weight over the median channel's greatest weight; median over the layers."""
    found = [layers[pair.first].output_maxima() for pair in pairs]
    return float(np.median([maxima.max() / max(np.median(maxima), 1e-12) for maxima in found]))


def _drop_unread(graph: onnx.GraphProto) -> None:
    read = used_names(graph)
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)
