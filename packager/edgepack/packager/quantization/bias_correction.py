"""Bias correction: what quantization shifts on average, the biases shift back.

Rounded weights and cut-off activations move the mean of a layer's outputs (Nagel et al.,
"Data-Free Quantization", 2019, section 4.2). The mean error of each channel is measured on
calibration samples, float and quantized model side by side, and subtracted from the layer's bias.
Only where it pays: a channel whose mean error could as well be chance keeps its bias.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from edgepack.packager.graph.questions import GraphIndex, index_graph
from edgepack.packager.judging.measure import ModelRunner
from edgepack.packager.quantization.channels import ChannelAxis, Channels, reduce_to_channels
from edgepack.packager.samples.sequence import Samples

_ROUNDS = 2
"""The first also corrects what earlier layers passed on; the second takes that back."""

_MOST_SAMPLES = 32
_STANDARD_ERRORS = 2.0
"""A mean error below this many standard errors is taken for chance."""


class _Layer(NamedTuple):
    """A layer whose bias can be changed.

    Attributes:
        name: The node.
        rank: Number of axes of its output.
        axis: Axis of the channels.
        channels: Their number.
        reader: The node that adds the bias: itself, or an Add after a MatMul.
        position: Which input of that node is the bias.
    """

    name: str
    rank: int
    axis: int
    channels: int
    reader: int
    position: int


def correct_biases(
    model: onnx.ModelProto,
    quantize: Callable[[onnx.ModelProto], onnx.ModelProto],
    names: Sequence[str],
    samples: Samples,
    folder: Path,
) -> tuple[onnx.ModelProto, str]:
    """Corrects the biases of a float model for how it is going to be quantized.

    Args:
        model: The float model with shapes; not changed.
        quantize: Makes the quantized model of a float one; nodes keep their names.
        names: Nodes that it quantizes.
        samples: Calibration samples.
        folder: Folder for models on the way; it must exist.

    Returns:
        The float model with other biases, and a note with numbers.
    """
    index = index_graph(model.graph)
    layers = _find_layers(index, frozenset(names))
    few = samples.pick(_spread(samples.count))
    corrections = {layer: np.zeros(layer.channels) for layer in layers}
    corrected = model
    for _ in range(_ROUNDS if layers else 0):
        errors = _mean_errors(model, quantize(corrected), layers, few, folder)
        for layer, error in zip(layers, errors, strict=True):
            corrections[layer] = corrections[layer] - error
        corrected = _with_biases(model, index, corrections)
    changed = [np.count_nonzero(correction) for correction in corrections.values()]
    return corrected, (
        f"Bias correction: {sum(changed)} channels of {np.count_nonzero(changed)} layers, of "
        f"{sum(layer.channels for layer in layers)} channels of {len(layers)} quantized layers "
        "with a bias."
    )


def _spread(count: int) -> list[int]:
    few = min(count, _MOST_SAMPLES)
    return [number * count // few for number in range(few)]


def _find_layers(index: GraphIndex, names: frozenset[str]) -> list[_Layer]:
    layers = []
    for position, node in enumerate(index.graph.node):
        if node.name not in names or node.op_type not in ("Conv", "Gemm", "MatMul"):
            continue
        weight = index.constant(node.input[1])
        shape = index.shapes.get(node.output[0], ())
        axis = len(shape) - 1 if node.op_type == "MatMul" else 1
        if weight is None or weight.ndim < 2 or len(shape) < 2:
            continue
        is_conv = node.op_type == "Conv"
        is_turned = any(entry.name == "transB" and entry.i for entry in node.attribute)
        channels = weight.shape[0 if is_conv or is_turned else -1]
        adds = _where_bias_is(index, position, channels)
        if adds is not None:
            layers.append(_Layer(node.name, len(shape), axis, channels, *adds))
    return layers


def _where_bias_is(index: GraphIndex, position: int, channels: int) -> tuple[int, int] | None:
    node = index.graph.node[position]
    if node.op_type != "MatMul":
        if len(node.input) < 3 or not node.input[2]:
            return position, 2
        fits = index.shapes.get(node.input[2]) == (channels,)
        return (position, 2) if fits and node.input[2] in index.initializers else None
    readers = index.consumers.get(node.output[0], [])
    if len(readers) != 1 or index.graph.node[readers[0]].op_type != "Add":
        return None
    for number, name in enumerate(index.graph.node[readers[0]].input):
        if name in index.initializers and index.shapes[name] == (channels,):
            return readers[0], number
    return None


def _mean_errors(
    model: onnx.ModelProto,
    quantized: onnx.ModelProto,
    layers: Sequence[_Layer],
    samples: Samples,
    folder: Path,
) -> list[Channels]:
    """Mean error of each channel of each layer; zero where it could be chance."""
    before = _runner(model, layers, folder / "float_means.onnx")
    after = _runner(quantized, layers, folder / "quantized_means.onnx")
    sums = [np.zeros(layer.channels) for layer in layers]
    squares = [np.zeros(layer.channels) for layer in layers]
    for feeds in samples:
        wanted, got = before.run(feeds).values(), after.run(feeds).values()
        for number, (right, wrong) in enumerate(zip(wanted, got, strict=True)):
            error = wrong.astype(np.float64) - right.astype(np.float64)
            sums[number] += error
            squares[number] += error**2
    count = samples.count
    means = [total / count for total in sums]
    return [
        np.where(
            np.abs(mean)
            > _STANDARD_ERRORS * np.sqrt(np.maximum(square / count - mean**2, 0.0) / count),
            mean,
            0.0,
        )
        for mean, square in zip(means, squares, strict=True)
    ]


def _runner(model: onnx.ModelProto, layers: Sequence[_Layer], path: Path) -> ModelRunner:
    outputs = {node.name: node.output[0] for node in model.graph.node}
    places = [ChannelAxis(outputs[layer.name], layer.rank, layer.axis) for layer in layers]
    return ModelRunner(reduce_to_channels(model, places, "mean"), path, optimize=False)


def _with_biases(
    model: onnx.ModelProto, index: GraphIndex, corrections: dict[_Layer, Channels]
) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    for layer, correction in corrections.items():
        if not correction.any():
            continue
        node = graph.node[layer.reader]
        old = (
            index.constant(node.input[layer.position]) if len(node.input) > layer.position else None
        )
        values = correction if old is None else old.astype(np.float64) + correction
        name = f"{layer.name}/corrected_bias"
        graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
        if len(node.input) <= layer.position:
            node.input.append(name)
        else:
            node.input[layer.position] = name
    return result
