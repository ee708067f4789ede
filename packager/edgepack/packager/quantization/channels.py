"""Contents of tensors' channels, over any number of samples.

The reduction is added to the graph, so that a single number per channel leaves ONNX Runtime and
nothing of a sample is kept.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.packager.graph.model_files import opset_of
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.arrays import Floats

Channels = Floats
"""One number a channel, float64 (channels,)."""

_FIRST_OPSET_WITH_AXES_INPUT = 18


class ChannelAxis(NamedTuple):
    """Axis of a tensor's channels.

    Attributes:
        tensor: The tensor.
        rank: Its number of axes.
        axis: The channels' axis, from 0.
    """

    tensor: str
    rank: int
    axis: int


def channel_maxima(
    model: onnx.ModelProto, places: Sequence[ChannelAxis], samples: Samples, path: Path
) -> dict[str, Channels]:
    """Return greatest magnitude of each channel.

    Args:
        model: A model that ONNX Runtime runs; not changed.
        places: The tensors to look at.
        samples: Samples to run; read once, individually.
        path: Where the instrumented model is written.

    Returns:
        By tensor.
    """
    runner = ModelRunner(reduce_to_channels(model, places, "magnitude"), path)
    maxima: dict[str, Channels] = {}
    for feeds in samples:
        for place, seen in zip(places, runner.run(feeds).values(), strict=True):
            wide = seen.astype(np.float64)
            known = maxima.get(place.tensor)
            maxima[place.tensor] = wide if known is None else np.maximum(known, wide)
    return maxima


def reduce_to_channels(
    model: onnx.ModelProto, places: Sequence[ChannelAxis], what: Literal["magnitude", "mean"]
) -> onnx.ModelProto:
    """Return a model with a number for each channel in place of its outputs.

    Args:
        model: The model; not changed.
        places: The tensors to reduce.
        what: The channel's greatest magnitude, or its mean.

    Returns:
        A copy with an output for each place, in their order: float32 (channels,).
    """
    result = deepcopy(model)
    graph = result.graph
    del graph.output[:]
    for number, place in enumerate(places):
        label, source = f"edgepack/channels_{number}", place.tensor
        if what == "magnitude":
            graph.node.append(helper.make_node("Abs", [source], [f"{label}/abs"], name=label))
            source = f"{label}/abs"
        axes = [axis for axis in range(place.rank) if axis != place.axis]
        kind = "ReduceMax" if what == "magnitude" else "ReduceMean"
        graph.node.append(_reduction(graph, kind, source, label, axes, opset_of(model)))
        graph.output.append(helper.make_tensor_value_info(label, TensorProto.FLOAT, None))
    return result


def _reduction(
    graph: onnx.GraphProto, kind: str, source: str, label: str, axes: list[int], opset: int
) -> onnx.NodeProto:
    name = f"{label}/reduced"
    if not axes:
        return helper.make_node("Identity", [source], [label], name=name)
    if opset < _FIRST_OPSET_WITH_AXES_INPUT:
        return helper.make_node(kind, [source], [label], name=name, keepdims=0, axes=axes)
    tensor = numpy_helper.from_array(np.array(axes, dtype=np.int64), f"{label}/axes")
    graph.initializer.append(tensor)
    return helper.make_node(kind, [source, tensor.name], [label], name=name, keepdims=0)
