"""Checks of pictures' preprocessing: numbers and doubts.

A wrong mean and std spoil the float model and the quantized model alike, so their agreement does
not show the mistake. Three things do:

1. The first convolution. Its outputs, or the statistics of a BatchNormalization behind, show the
   size of the training inputs: pixels of 0 … 255 in place of 0 … 1 are hundreds of times too large.
2. The values. Classifiers, readers and text detectors of colour pictures are trained on inputs
   around 0 by nearly every recipe (ImageNet's mean and std, or -1 … 1). Values without any below 0
   are the result of `edgepack init`'s default, which has no mean; values without any above 0, with
   a small range or far from 0, of a scale or mean that was applied twice or not at all. Object
   detectors (YOLO) do take 0 … 1, and are left out.
3. A mean below its std in every channel, declared or shown by arrays with channels that begin at
   `-std / mean` of a published recipe: both were swapped.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from edgepack.packager.config.inputs import (
    ImageInput,
    InputDeclaration,
    RawInput,
    picture_input,
)
from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import with_contents
from edgepack.packager.graph.model_files import RUNTIME_ERRORS
from edgepack.packager.graph.queries import is_standard
from edgepack.packager.runtime.model_run import ModelRunner
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tensors.sequence import Samples
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import Floats
from edgepack.tasks.detections.layouts import DetectionHead

_MOST_SAMPLES = 16
_PASSING = frozenset({"Cast", "Identity", "Pad", "Transpose"})
"""Operators before a first convolution that change no value's size."""

_FAR_MEANS = 5.0
"""Standard deviations between the means of a first layer and its BatchNormalization's."""

_LARGE_OUTPUT = 50.0
"""Root-mean-square of a first convolution that is too large, where no BatchNormalization follows.

Both numbers were measured on 108 classifiers with one convolution (3, 5 or 7 wide, 8 or 24
filters), trained with Adam on three kinds of drawn pictures, coloured, on paper and on black, that
were prepared in three ways. Least, middle and greatest value, and false or missed warnings of 54:

| | fed as trained | of 0 … 255 | warned at half | at it | at twice |
| --- | --- | --- | --- | --- | --- |
| means, with BatchNormalization | .02, .2, .6 | 16, 200, 1083 | 0, 0 | 0, 0 | 0, 0 |
| outputs, without | .7, 5, 26 | 86, 600, 3294 | 1, 0 | 0, 0 | 0, 1 |

Three text models (RapidOCR) came to at most 2.0 with inputs of -1 … 1, 0 … 1 and ImageNet's, and
to at least 26 with 0 … 255. What a model trained on 0 … 1 makes of -1 … 1 (.7 … 5.9) is no farther
than what others make of it, so that this alone is no evidence.
"""

_RECIPES: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CLIP": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR-100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}
"""Mean and std of RGB pixels 0 … 1 that models publish."""

_SAME = 0.01
"""Difference to which two ends of a channel's values are the same."""

_LOWEST_OF_POSITIVE = -0.02
"""Values above this are taken for not negative: resizing overshoots a little."""

_LEAST_RANGE, _FARTHEST, _PIXELS = 0.5, 6.0, 50.0
"""Recipes above, and mean and std .5, give a range of at least 2 and no value beyond 3; pixels with
a mean alone reach 100 or more."""


class InputValues(msgspec.Struct, frozen=True, kw_only=True):
    """Values of samples in an input.

    Attributes:
        name: The input.
        preprocessing: How files become values, in words.
        low, high: Least and greatest value.
        channel_means, channel_lows, channel_highs: By channel; of pictures only.
    """

    name: str
    preprocessing: str
    low: float
    high: float
    channel_means: tuple[float, ...] = ()
    channel_lows: tuple[float, ...] = ()
    channel_highs: tuple[float, ...] = ()

    def __str__(self) -> str:
        means = ", ".join(f"{mean:.3g}" for mean in self.channel_means)
        behind = f", channel means {means}" if means else ""
        return f"{self.name}: {self.preprocessing}; values {self.low:.3g} … {self.high:.3g}{behind}"


def describe_inputs(
    samples: Samples, inputs: tuple[TensorSpec, ...], declarations: Mapping[str, InputDeclaration]
) -> tuple[InputValues, ...]:
    """Return the preprocessing of each input, and the resulting values.

    Args:
        samples: Calibration samples; the first 16 are read.
        inputs: The model's.
        declarations: Declared inputs by name.
    """
    feeds = list(samples.first(_MOST_SAMPLES))
    found = []
    for spec in inputs:
        arrays = [np.asarray(each[spec.name]) for each in feeds if each[spec.name].size]
        if not arrays or arrays[0].dtype.kind not in "fiu":
            continue
        declaration = declarations.get(spec.name)
        axis = _channel_axis(spec, declaration)
        by_channel = [] if axis is None else [_channels(array, axis) for array in arrays]
        found.append(
            InputValues(
                name=spec.name,
                preprocessing=_words(spec, samples, declaration),
                low=min(float(array.min()) for array in arrays),
                high=max(float(array.max()) for array in arrays),
                channel_means=_over(np.mean, [rows.mean(1, dtype=float) for rows in by_channel]),
                channel_lows=_over(np.min, [rows.min(1) for rows in by_channel]),
                channel_highs=_over(np.max, [rows.max(1) for rows in by_channel]),
            )
        )
    return tuple(found)


def find_doubts(
    source: SourceModel,
    samples: Samples,
    values: tuple[InputValues, ...],
    declarations: Mapping[str, InputDeclaration],
) -> tuple[str, ...]:
    """Return doubts about the preprocessing of pictures, a sentence for each input.

    Args:
        source: The model.
        samples: Calibration samples, with the model's description.
        values: See `describe_inputs`.
        declarations: Declared inputs by name; confirmed inputs are not doubted.
    """
    doubts = []
    for entry in values:
        declared = declarations.get(entry.name)
        if isinstance(declared, ImageInput | RawInput) and declared.prepared_as_trained:
            continue
        spec = next(spec for spec in source.inputs if spec.name == entry.name)
        if len(entry.channel_means) != 3 or not spec.dtype.startswith("float"):
            continue
        if swapped := _describe_swap(entry, declared):
            doubts.append(f"{_says(entry)}. {swapped} {_correct(entry.name)}")
            continue
        first = _find_first_convolution(source.model.graph, entry.name)
        if first is None:
            continue  # the model prepares its pictures itself
        if far := _far_from_training(source.model, first, samples, entry.name):
            doubts.append(f"{_says(entry)}. {far} {_correct(entry.name)}")
        elif (unlike := _describe_range(entry)) and _is_centred_kind(source, samples):
            doubts.append(
                f"{_says(entry)}, {unlike}. Most models of this kind are trained on values "
                "around 0 (ImageNet's mean [0.485, 0.456, 0.406] and std [0.229, 0.224, 0.225], or "
                "mean and std 0.5). Accuracy beside the float model does not show the mistake. "
                f"{_correct(entry.name)}"
            )
    return tuple(doubts)


def _describe_range(entry: InputValues) -> str:
    """Return how values differ from those of every published recipe; "" if they do not."""
    if entry.low >= _LOWEST_OF_POSITIVE:
        return "none below 0"
    if entry.high <= -_LOWEST_OF_POSITIVE:
        return "none above 0"
    if entry.high - entry.low < _LEAST_RANGE:
        return "which differ by little"
    if _FARTHEST < max(-entry.low, entry.high) < _PIXELS:
        return "farther from 0 than any published recipe leads"
    return ""


def _describe_swap(entry: InputValues, declared: InputDeclaration | None) -> str:
    """Return the sign that mean and std were swapped; "" without a sign."""
    if isinstance(declared, ImageInput):
        pairs = list(zip(declared.mean, declared.std, strict=False))
        if len(pairs) == 3 and all(0.0 < mean < std for mean, std in pairs):
            return "Each channel's mean is below its std: mean and std may be swapped."
        return ""
    for name, recipe in _RECIPES.items():
        for mean, std in (recipe, (recipe[0][::-1], recipe[1][::-1])):
            lows = [-s / m for m, s in zip(mean, std, strict=True)]
            highs = [(1.0 - s) / m for m, s in zip(mean, std, strict=True)]
            begins = np.allclose(entry.channel_lows, lows, atol=_SAME)
            if begins and (np.asarray(entry.channel_highs) <= np.asarray(highs) + _SAME).all():
                return (
                    f"Black has the values that {name}'s mean and std give if they are swapped "
                    f"({', '.join(f'{low:.3f}' for low in lows)})."
                )
    return ""


def _correct(name: str) -> str:
    return (
        "Compare scale, mean and std of the input in edgepack.toml, or your arrays, with the "
        "training. If they are those of the training, confirm it: prepared_as_trained = true in "
        f"[inputs.{toml_key(name)}] of edgepack.toml."
    )


def _says(entry: InputValues) -> str:
    means = ", ".join(f"{mean:.3g}" for mean in entry.channel_means)
    return (
        f"The preprocessing may be wrong: input {entry.name!r} holds values {entry.low:.3g} … "
        f"{entry.high:.3g} with channel means {means}"
    )


def _words(spec: TensorSpec, samples: Samples, declaration: InputDeclaration | None) -> str:
    if samples.answers is not None:
        return "texts of prompts and answers, with an empty cache"
    if not isinstance(declaration, ImageInput) or samples.pictures_of is None:
        return "arrays as the files hold them"
    return picture_input(declaration, spec).words


def _channel_axis(spec: TensorSpec, declaration: InputDeclaration | None) -> int | None:
    """Return the axis of a picture's channels; None for other inputs."""
    if len(spec.shape) != 4:
        return None
    if isinstance(declaration, ImageInput):
        return 1 if declaration.layout == "NCHW" else 3
    return next((axis for axis in (1, 3) if spec.shape[axis] == 3), None)


def _channels(array: np.ndarray, axis: int) -> np.ndarray:
    """Return a picture's values, a row for each channel."""
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)


def _over(reduce: Callable[..., np.ndarray], rows: list[np.ndarray]) -> tuple[float, ...]:
    return tuple(map(float, reduce(rows, axis=0))) if rows else ()


def _means(array: np.ndarray, axis: int) -> Floats:
    others = tuple(other for other in range(array.ndim) if other != axis)
    return np.asarray(array.mean(axis=others, dtype=np.float64))


def _is_centred_kind(source: SourceModel, samples: Samples) -> bool:
    """Return whether a model is a classifier, a reader, or finds areas of text."""
    boxes = samples.description.part_of("detections")
    if boxes is not None:
        return DetectionHead.of(boxes).layout == "text-map"
    is_reader = samples.description.part_of("text") is not None
    return is_reader or all(len(spec.shape) == 2 for spec in source.outputs)


class _First(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes up to a first convolution, and the BatchNormalization behind, if any."""

    nodes: list[onnx.NodeProto]
    norm: onnx.NodeProto | None


def _find_first_convolution(graph: onnx.GraphProto, name: str) -> _First | None:
    nodes: list[onnx.NodeProto] = []
    while True:
        readers = [node for node in graph.node if name in node.input]
        if len(readers) != 1 or not is_standard(readers[0]):
            return None
        nodes.append(readers[0])
        name = readers[0].output[0]
        if readers[0].op_type == "Conv":
            norms = [
                node
                for node in graph.node
                if node.op_type == "BatchNormalization" and node.input[0] == name
            ]
            return _First(nodes=nodes, norm=norms[0] if norms else None)
        if readers[0].op_type not in _PASSING:
            return None


def _far_from_training(model: onnx.ModelProto, first: _First, samples: Samples, name: str) -> str:
    """Return the distance of the first layer's outputs from training, in words; "" if near."""
    constants = _constants(model.graph)
    convolution = first.nodes[-1]
    outputs = _run_first(model, first.nodes, constants, samples, name, convolution.output[0])
    if outputs is None:
        return ""
    means, sizes = _means(outputs, 1), np.sqrt(_means(np.square(outputs, dtype=np.float64), 1))
    if first.norm is None:
        size = float(np.median(sizes))
        if size <= _LARGE_OUTPUT:
            return ""
        return f"The first layer then gives values of size {size:.0f}, where about 1 is usual."
    trained = [constants.get(entry) for entry in first.norm.input[3:5]]
    if trained[0] is None or trained[1] is None:
        return ""
    mean, variance = (numpy_helper.to_array(it).astype(np.float64) for it in trained if it)
    far = float(np.median(np.abs(means - mean) / np.sqrt(variance + 1e-5)))
    if far <= _FAR_MEANS:
        return ""
    return (
        f"The first layer's outputs are then {far:.0f} standard deviations from those that its "
        "BatchNormalization saw in training."
    )


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            found[node.output[0]] = node.attribute[0].t
    return found


def _run_first(
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    constants: Mapping[str, onnx.TensorProto],
    samples: Samples,
    name: str,
    output: str,
) -> np.ndarray | None:
    """Return the outputs of the first convolution, [1, channels, values]; None on failure."""
    made = {tensor for node in nodes for tensor in node.output} | {name}
    weights = []
    for needed in {tensor for node in nodes for tensor in node.input if tensor} - made:
        if needed not in constants or stored_tensors.is_held(constants[needed]):
            return None
        tensor = onnx.TensorProto()
        tensor.CopyFrom(constants[needed])
        tensor.name = needed
        weights.append(tensor)
    given = [value for value in model.graph.input if value.name == name]
    told = [onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)]
    part = with_contents(model, nodes, given, told, weights)
    with tempfile.TemporaryDirectory(prefix="edgepack-first-layer-") as folder:
        try:
            run = ModelRunner(part, Path(folder) / "model.onnx", threads=1).run
            values = [run({name: feeds[name]})[output] for feeds in samples.first(_MOST_SAMPLES)]
        except RUNTIME_ERRORS:
            return None
    rows = [value.reshape(*value.shape[:2], -1) for value in values]
    return np.concatenate(
        [row.transpose(0, 2, 1).reshape(1, -1, row.shape[1]) for row in rows], 1
    ).transpose(0, 2, 1)
