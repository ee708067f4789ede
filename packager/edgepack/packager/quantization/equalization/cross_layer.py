"""Cross-layer equalization: channels of two consecutive layers get ranges of similar size.

If a convolution follows another, channel i of the first layer's output may be divided by any
positive s_i and the second layer's weights for this channel multiplied by the same factor; with

    s_i = sqrt(max|W1_i| / max|W2_i|)

both layers' weights have the same range in that channel, so that a single scale per tensor fits all
channels (Nagel et al., "Data-Free Quantization", 2019, equation 11). `layers_in_row` defines the
allowed nodes between the two.

A Clip (ReLU6) between the layers has a common bound for all channels, which a factor would move.
The Clip stays, and only channels away from the bound on the calibration samples are scaled, and
only as far as they stay away: on these samples nothing changes. (The paper puts a ReLU in place of
each ReLU6, which changes a model wherever the bound is reached.)

Search for consecutive layers: scaled channels of the first can be compensated in the next.

Allowed between the two are nodes that a positive factor passes through (ReLU, PRelu, LeakyRelu,
poolings), and a Clip from 0 (ReLU6), which a factor passes through below its bound.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from edgepack.packager.graph.edits import drop_unread
from edgepack.packager.graph.node_chains import only_reading, scalar
from edgepack.packager.graph.operators import facts, tells_places
from edgepack.packager.graph.queries import GraphIndex, attribute, index_graph, is_standard
from edgepack.packager.quantization.channels import ChannelAxis, Channels, channel_maxima
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Floats
from edgepack.text import counted


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


_CLEARANCE = 1.25
"""Room below a Clip's bound: so many times the greatest value of the calibration samples."""
_ROUNDS = 20
_SETTLED = 1e-3
_LEAST, _MOST = 1e-4, 1e4


def can_equalize(index: GraphIndex) -> bool:
    """Return True if a graph has two layers in a row that can be equalized."""
    return bool(find_pairs(index))


def equalize(
    model: onnx.ModelProto, samples: Samples, work_dir: Path
) -> tuple[onnx.ModelProto, str]:
    """Equalize a model; on the samples its outputs stay the same up to float rounding.

    Args:
        model: The float model with shapes, which can be equalized; not changed.
        samples: Calibration samples, read where a Clip stands between two layers.
        work_dir: Existing folder for the instrumented model.

    Returns:
        The equalized model, and a note with numbers.
    """
    index = index_graph(model.graph)
    pairs = find_pairs(index)
    layers = {
        position: _Layer(index, position)
        for pair in pairs
        for position in (pair.first, pair.second)
    }
    before = _median_unevenness(layers, pairs)
    reached = _reached_shares(model, index, pairs, samples, work_dir)
    scalings = [
        _Scaling(layers[pair.first], layers[pair.second], share)
        for pair, share in zip(pairs, reached, strict=True)
    ]
    for _ in range(_ROUNDS):
        moved = max(scaling.equalize() for scaling in scalings)
        if moved < _SETTLED:
            break
    result = deepcopy(model)
    for position, layer in layers.items():
        layer.store(result.graph, position)
    drop_unread(result.graph)
    return result, (
        f"Cross-layer equalization: {counted(len(pairs), 'pair')} of layers"
        f"{_describe_clips(pairs, reached)}"
        "; the greatest weight of "
        f"a tensor over its median channel's went from {before:.1f} to "
        f"{_median_unevenness(layers, pairs):.1f} (median)."
    )


class _Layer:
    """The weights and bias of a layer, by channel."""

    def __init__(self, index: GraphIndex, position: int) -> None:
        self._node = index.graph.node[position]
        bias = index.constant(self._node.input[2]) if len(self._node.input) > 2 else None
        self._stored = index.values(self._node.input[1]).astype(np.float64)
        outputs_last = self._node.op_type == "Gemm" and not attribute(self._node, "transB")
        self._weights = self._stored.T if outputs_last else self._stored  # (outputs, inputs, …)
        self._bias = None if bias is None else bias.astype(np.float64)
        self._groups = attribute(self._node, "group", 1)

    def output_maxima(self) -> Floats:
        """Return greatest magnitude of the weights that make each output channel."""
        return np.asarray(np.abs(self._weights).reshape(len(self._weights), -1).max(axis=1))

    def input_maxima(self) -> Floats:
        """Return greatest magnitude of the weights that read each input channel."""
        return np.asarray(np.abs(self._by_input()).max(axis=(1, 3)).reshape(-1))

    def divide_outputs(self, factors: Floats) -> None:
        """Divide each output channel."""
        self._weights /= factors.reshape(-1, *[1] * (self._weights.ndim - 1))
        if self._bias is not None:
            self._bias = self._bias / factors

    def multiply_inputs(self, factors: Floats) -> None:
        """Multiply the weights of each input channel."""
        scaled = self._by_input() * factors.reshape(self._groups, 1, -1, 1)
        self._weights[...] = scaled.reshape(self._weights.shape)

    def _by_input(self) -> Floats:
        """Return the weights as (groups, outputs of a group, inputs of a group, kernel)."""
        outputs, inputs = self._weights.shape[:2]
        return self._weights.reshape(self._groups, outputs // self._groups, inputs, -1)

    def store(self, graph: onnx.GraphProto, position: int) -> None:
        """Write the layer into a graph, under new names: others may read the old tensors."""
        node = graph.node[position]
        for number, values in ((1, self._stored), (2, self._bias)):
            if values is not None:
                name = f"{node.name}/equalized_{number}"
                node.input[number] = name
                graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))


class _Scaling:
    """The factors of a pair of layers.

    Args:
        first, second: The layers.
        reached: See `_reached_shares`.
    """

    def __init__(self, first: _Layer, second: _Layer, reached: Channels) -> None:
        self._first, self._second = first, second
        self._least = _CLEARANCE * reached
        self._so_far = np.ones_like(reached)

    def equalize(self) -> float:
        """Equalize the pair again.

        Returns:
            The largest change of a channel, as a logarithm: 0 where nothing was left to do.
        """
        made, read = self._first.output_maxima(), self._second.input_maxima()
        used = (made > 0) & (read > 0) & (self._least < 1)
        ratio = np.sqrt(np.where(used, made, 1.0) / np.where(used, read, 1.0))
        wanted = np.maximum(np.clip(ratio, _LEAST, _MOST), self._least / self._so_far)
        factors = np.where(used, wanted, 1.0)
        self._so_far *= factors
        self._first.divide_outputs(factors)
        self._second.multiply_inputs(factors)
        return float(np.abs(np.log(factors)).max())


def _reached_shares(
    model: onnx.ModelProto,
    index: GraphIndex,
    pairs: Sequence[Pair],
    samples: Samples,
    work_dir: Path,
) -> list[Channels]:
    """Return the share of the bound that each channel reaches in each pair's Clips; 0 without
    Clips.
    """
    clips = {clip.output: clip for pair in pairs for clip in pair.clips}
    places = [ChannelAxis(name, len(index.shapes[name]), 1) for name in clips]
    seen = channel_maxima(model, places, samples, work_dir / "clips.onnx") if places else {}
    return [
        np.max(
            [
                np.zeros(pair.channels),
                *(seen[clip.output] / clip.bound for clip in pair.clips),
            ],
            axis=0,
        )
        for pair in pairs
    ]


def _describe_clips(pairs: Sequence[Pair], reached: Sequence[Channels]) -> str:
    shares = [share for pair, share in zip(pairs, reached, strict=True) if pair.clips]
    if not shares:
        return ""
    clear = float(np.mean(_CLEARANCE * np.concatenate(shares) < 1))
    return (
        f", {len(shares)} of them with a Clip between, where {clear:.0%} of the channels keep "
        "clear of its bound and may be scaled"
    )


def _median_unevenness(layers: dict[int, _Layer], pairs: list[Pair]) -> float:
    """Return greatest weight over the median channel's greatest weight; median over the layers."""
    found = [layers[pair.first].output_maxima() for pair in pairs]
    return float(np.median([maxima.max() / max(np.median(maxima), 1e-12) for maxima in found]))
