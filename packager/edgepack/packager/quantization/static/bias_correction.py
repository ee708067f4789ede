"""Bias correction: biases compensate the mean shift of quantization.

Rounded weights and cut-off activations move the mean of a layer's outputs (Nagel et al., "Data-Free
Quantization", 2019, section 4.2). The mean error of each channel is measured on calibration
samples, float and quantized model in parallel, and subtracted from the layer's bias, layer by
layer: errors passed on by earlier layers are corrected before a later layer is measured. Corrected
all at once, the error counts again in every later layer: a text recognizer of 47 layers read no
character after that. Only significant errors are corrected: a channel with a mean error that may be
chance keeps its bias.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.queries import GraphIndex, attribute, index_graph, reads
from edgepack.packager.quantization.channels import ChannelAxis, Channels, reduce_to_channels
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Floats

_MOST_SAMPLES = 16
"""Each layer that follows another takes one more run of every sample."""

_STANDARD_ERRORS = 2.0
"""A mean error below this many standard errors is taken for chance."""


class _Layer(NamedTuple):
    """A layer with a changeable bias.

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
    """Correct the biases of a float model for its quantization.

    Args:
        model: The float model with shapes; not changed.
        quantize: Makes the quantized model of a float model; nodes keep their names.
        names: Quantized nodes.
        samples: Calibration samples.
        folder: Existing folder for intermediate models.

    Returns:
        The float model with other biases, and a note with numbers.
    """
    index = index_graph(model.graph)
    layers = _find_layers(index, frozenset(names))
    few = samples.spread(_MOST_SAMPLES)
    corrections = {}
    if layers:
        corrections = _correct_in_turn(model, index, quantize(model), layers, few, folder)
    changed = [np.count_nonzero(correction) for correction in corrections.values()]
    return _with_biases(model, index, corrections), (
        f"Bias correction: {sum(changed)} channels of {np.count_nonzero(changed)} layers, of "
        f"{sum(layer.channels for layer in layers)} channels of {len(layers)} quantized layers "
        "with a bias."
    )


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
        channels = weight.shape[0 if is_conv or attribute(node, "transB") else -1]
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


def _correct_in_turn(
    model: onnx.ModelProto,
    index: GraphIndex,
    quantized: onnx.ModelProto,
    layers: Sequence[_Layer],
    samples: Samples,
    folder: Path,
) -> dict[_Layer, Channels]:
    """Return the correction of each layer's channels; layers without one between share a turn."""
    outputs = {node.name: node.output[0] for node in model.graph.node}
    before = _runner(model, outputs, layers, folder / "float_means.onnx")
    wanted = [list(before.run(feeds).values()) for feeds in samples]
    shifted, outputs = _with_shifts(quantized, layers)
    after = _runner(shifted, outputs, layers, folder / "quantized_means.onnx")
    shifts = {_shift(layer): np.zeros(_wide(layer), np.float32) for layer in layers}
    corrections: dict[_Layer, Channels] = {}
    for turn in _turns(index, layers):
        got = [list(after.run({**feeds, **shifts}).values()) for feeds in samples]
        for number in turn:
            layer = layers[number]
            errors = [
                wrong[number].astype(np.float64) - right[number].astype(np.float64)
                for wrong, right in zip(got, wanted, strict=True)
            ]
            corrections[layer] = -_unless_chance(np.stack(errors))
            shifts[_shift(layer)] = corrections[layer].astype(np.float32).reshape(_wide(layer))
    return corrections


def _unless_chance(errors: Floats) -> Channels:
    """Return means over samples, of (samples, channels); zero for insignificant means."""
    mean = errors.mean(axis=0)
    standard_error = errors.std(axis=0) / np.sqrt(len(errors))
    return np.where(np.abs(mean) > _STANDARD_ERRORS * standard_error, mean, 0.0)


def _turns(index: GraphIndex, layers: Sequence[_Layer]) -> list[list[int]]:
    """Return the places of layers, by how many layers are behind each on the longest way to the
    inputs.
    """
    places = {layer.name: number for number, layer in enumerate(layers)}
    behind: dict[str, int] = {}
    turns: list[list[int]] = []
    for node in index.graph.node:
        depth = max((behind.get(name, 0) for name in reads(node)), default=0)
        if node.name in places:
            turns += [[] for _ in range(depth + 1 - len(turns))]
            turns[depth].append(places[node.name])
            depth += 1
        behind.update(dict.fromkeys(node.output, depth))
    return turns


def _with_shifts(
    quantized: onnx.ModelProto, layers: Sequence[_Layer]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a model that adds an input of its own to each layer's channels, and where that is
    then.
    """
    result = deepcopy(quantized)
    graph = result.graph
    nodes = {node.name: node for node in graph.node}
    outputs = {}
    for layer in layers:
        node, shift = nodes[layer.name], _shift(layer)
        outputs[layer.name] = node.output[0]
        node.output[0] = f"{shift}/before"
        value = helper.make_tensor_value_info(shift, TensorProto.FLOAT, _wide(layer))
        graph.input.append(value)
        added = helper.make_node(
            "Add", [node.output[0], shift], [outputs[layer.name]], name=f"{shift}/add"
        )
        graph.node.insert([other.name for other in graph.node].index(node.name) + 1, added)
    return result, outputs


def _shift(layer: _Layer) -> str:
    return f"{layer.name}/edgepack_shift"


def _wide(layer: _Layer) -> list[int]:
    """Return the shape in which a number a channel is added to the layer's output."""
    return [layer.channels if axis == layer.axis else 1 for axis in range(layer.rank)]


def _runner(
    model: onnx.ModelProto, outputs: dict[str, str], layers: Sequence[_Layer], path: Path
) -> ModelRunner:
    places = [ChannelAxis(outputs[layer.name], layer.rank, layer.axis) for layer in layers]
    return ModelRunner(reduce_to_channels(model, places, "mean"), path, optimize=False)


def _with_biases(
    model: onnx.ModelProto, index: GraphIndex, corrections: dict[_Layer, Channels]
) -> onnx.ModelProto:
    result = deepcopy(model)
    graph = result.graph
    for layer, correction in corrections.items():
        if not correction.any():
            continue
        node = graph.node[layer.reader]
        if len(node.input) == layer.position:
            node.input.append("")
        old = index.constant(node.input[layer.position])
        values = correction if old is None else old.astype(np.float64) + correction
        name = f"{layer.name}/corrected_bias"
        graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
        node.input[layer.position] = name
    return result
