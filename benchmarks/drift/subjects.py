"""Models whose drift is measured, with labelled samples and shifts of the scene.

The estimate of losses was developed on some of these models; the fresh models were opened after it
was finished. The rule for changes and its numbers were chosen on neither.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageFilter
from sklearn.datasets import load_breast_cancer
from sklearn.neural_network import MLPClassifier

from benchmarks.task_kinds.examples import text_recognizer
from benchmarks.task_kinds.independent import activity, fruit_and_weight, glyphs
from benchmarks.task_kinds.kind import TaskModel
from benchmarks.tasks import digits
from benchmarks.tasks.task import Array, Feeds
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.text.decoding import read_text
from edgepack.tasks.text.head import TextHead

_SEED, _SAMPLES = 77, 600
_RANGE = (-0.8, 2.0)
"""Values of drawn pictures."""

Shift = Callable[[Array, np.random.Generator], Array]
"""Shifts a sample: a picture, float (rows, columns, channels), 0…1, or a row of numbers."""


class Subject(NamedTuple):
    """A model with labelled samples.

    Attributes:
        name: Short name.
        run: Runs the float model.
        part: Meaning of its outputs.
        samples: Pictures, or rows of numbers.
        kinds: A number per sample, for a change of classes.
        is_right: Whether the outputs for a sample, by number, are right.
        as_feeds: Makes a sample the model's input.
        shifts: Shifts of the scene, by name.
        light: Changes a sample by the light of a day, 0…1.
        is_fresh: Whether nothing was developed on the model.
    """

    name: str
    run: Callable[[Feeds], dict[str, Array]]
    part: TaskOutputs
    samples: Sequence[Array]
    kinds: Array
    is_right: Callable[[dict[str, Array], int], bool]
    as_feeds: Callable[[Array], Feeds]
    shifts: Mapping[str, Shift]
    light: Callable[[Array, float], Array] = lambda sample, light: sample * light
    is_fresh: bool = False


def _open_kind(name: str, kind: TaskModel, shifts: Mapping[str, Shift]) -> Subject:
    """Open a model that was trained here, with samples that it was not trained on.

    Pictures are scaled to 0…1; signals stay.
    """
    run, _ = _open(kind.model.SerializeToString())
    entry = kind.model.graph.input[0].name
    output, head = _head_of(kind.model)
    assert kind.draw is not None
    inputs, *_, truth = kind.draw(np.random.default_rng(_SEED), _SAMPLES)
    is_picture = inputs.ndim == 4
    low, high = _RANGE if is_picture else (0.0, 1.0)

    def is_right(outputs: dict[str, Array], number: int) -> bool:
        if head is not None:
            return list(read_text(head, outputs)) == list(truth[number])
        return bool(outputs[output].argmax() == truth[number])

    def as_feeds(sample: Array) -> Feeds:
        value = sample * (high - low) + low
        return {entry: (value.transpose(2, 0, 1) if is_picture else value)[None].astype(np.float32)}

    part = TaskOutputs(task="classification", outputs=(output,)) if head is None else head.part
    of_kind = [one[0] for one in truth] if head is not None else truth
    return Subject(
        name=name,
        run=run,
        part=part,
        samples=[
            (one.transpose(1, 2, 0) - low) / (high - low) if is_picture else one for one in inputs
        ],
        kinds=np.array(of_kind) > np.mean(of_kind),
        is_right=is_right,
        as_feeds=as_feeds,
        shifts=shifts,
        is_fresh=True,
    )


def _head_of(model: onnx.ModelProto) -> tuple[str, TextHead | None]:
    """Return the output that decides, and its head if the output is a text."""
    names = [one.name for one in model.graph.output]
    if "characters" in names:
        return "characters", TextHead(output="characters", blank=16, source="declared")
    return names[0], None


def _open(model: object) -> tuple[Callable[[Feeds], dict[str, Array]], str]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(None, feeds), strict=True)), names[0]


def _open_digits() -> Subject:
    run, output = _open(str(digits.TASK.model))
    chosen = slice(1000, 1600)
    labels = digits._samples()["labels"][chosen]
    return Subject(
        name="digits, classifier",
        run=run,
        part=TaskOutputs(task="classification", outputs=(output,)),
        samples=[feeds["x"][0].transpose(1, 2, 0) for feeds in digits._feeds(chosen)],
        kinds=labels >= 5,
        is_right=lambda outputs, number: int(outputs[output].argmax()) == labels[number],
        as_feeds=lambda picture: {"x": picture.transpose(2, 0, 1)[None].astype(np.float32)},
        shifts=_picture_shifts(pixels=4),
    )


def _open_cells() -> Subject:
    """Train a classifier of 30 measures of cells, on half of the rows."""
    rows, labels = load_breast_cancer(return_X_y=True)
    rows = (rows - rows[::2].mean(axis=0)) / rows[::2].std(axis=0)
    net = MLPClassifier((24,), alpha=0.1, max_iter=400, random_state=0).fit(rows[::2], labels[::2])
    (first, last), (first_bias, last_bias) = net.coefs_, net.intercepts_
    two = np.concatenate([np.zeros_like(last), last], axis=1)
    weights = {"w1": first, "b1": first_bias, "w2": two, "b2": np.array([0.0, last_bias[0]])}
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "w2", "b2"], ["scores"]),
            helper.make_node("Softmax", ["scores"], ["y"]),
        ],
        "cells",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 30])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(one.astype(np.float32), name) for name, one in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    run, output = _open(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )
    kept = labels[1::2]
    return Subject(
        name="cells, classifier of a row",
        run=run,
        part=TaskOutputs(task="classification", outputs=(output,)),
        samples=list(rows[1::2]),
        kinds=kept,
        is_right=lambda outputs, number: int(outputs[output].argmax()) == kept[number],
        as_feeds=lambda row: {"x": row[None].astype(np.float32)},
        shifts={
            "noise": lambda row, rng: row + rng.normal(0.0, 1.0, row.shape),
            "noise, strong": lambda row, rng: row + rng.normal(0.0, 3.0, row.shape),
            "half of the sensors dead": lambda row, _rng: np.where(np.arange(30) % 2, row, 0.0),
            "other units of ten sensors": lambda row, _rng: (
                row * np.where(np.arange(30) < 10, 3, 1)
            ),
            "offset": lambda row, _rng: row + 1.0,
        },
        light=lambda row, light: row + (1.0 - light),
    )


_SWAPPED: Mapping[str, Shift] = {"channels swapped": lambda one, _rng: one[..., ::-1]}
_SIGNAL_SHIFTS: Mapping[str, Shift] = {
    "noise": lambda signal, rng: signal + rng.normal(0.0, 1.0, signal.shape),
    "noise, strong": lambda signal, rng: signal + rng.normal(0.0, 4.0, signal.shape),
    "weaker": lambda signal, _rng: signal * 0.5,
    "an axis dead": lambda signal, _rng: signal * np.array([[0.0], [1.0], [1.0]]),
    "mounted turned": lambda signal, _rng: signal[[1, 0, 2]],
    "mounted upside down": lambda signal, _rng: signal * np.array([[1.0], [1.0], [-1.0]]),
    "half of the rate": lambda signal, _rng: np.repeat(signal[:, ::2], 2, axis=1),
    "saturated": lambda signal, _rng: np.clip(signal, -4.0, 4.0),
}


def _small_shifts() -> dict[str, Shift]:
    """Return the shifts of pictures of 16 to 20 rows."""
    return _picture_shifts(pixels=2, radii=(0.7, 1.5))


def _picture_shifts(pixels: int, radii: tuple[float, float] = (1.5, 3.0)) -> dict[str, Shift]:
    blurred = {f"blur {radius:g}": partial(_blur, radius=radius) for radius in radii}
    return {
        "dark .7": lambda one, _rng: one * 0.7,
        "dark .3": lambda one, _rng: one * 0.3,
        "noise .05": partial(_noise, spread=0.05),
        "noise .3": partial(_noise, spread=0.3),
        **blurred,
        f"moved by {pixels} pixels": lambda one, _rng: np.roll(one, pixels, axis=1),
        "JPEG 20": partial(_jpeg, quality=20),
        "JPEG 5": partial(_jpeg, quality=5),
        "a third covered": _cover,
    }


def _noise(picture: Array, rng: np.random.Generator, spread: float) -> Array:
    return np.clip(picture + rng.normal(0.0, spread, picture.shape), 0.0, 1.0)


def _blur(picture: Array, _rng: np.random.Generator, radius: float) -> Array:
    return _through_image(picture, lambda image: image.filter(ImageFilter.GaussianBlur(radius)))


def _jpeg(picture: Array, _rng: np.random.Generator, quality: int) -> Array:
    def pack(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _through_image(picture, pack)


def _cover(picture: Array, rng: np.random.Generator) -> Array:
    covered = picture.copy()
    width = picture.shape[1] // 3
    left = int(rng.integers(0, picture.shape[1] - width))
    covered[:, left : left + width] = float(picture.mean())
    return covered


def _through_image(picture: Array, change: Callable[[Image.Image], Image.Image]) -> Array:
    """Change a picture as an image; two channels, which no image has, are changed one by one."""
    if picture.shape[-1] == 2:
        planes = np.split(picture, 2, axis=-1)
        return np.concatenate([_through_image(plane, change) for plane in planes], axis=-1)
    pixels = (np.clip(picture, 0.0, 1.0) * 255).astype(np.uint8)
    changed = change(Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels))
    return (np.asarray(changed).astype(np.float64) / 255).reshape(picture.shape)


SUBJECTS: tuple[Callable[[], Subject], ...] = (
    lambda: _open_kind("glyphs, classifier", glyphs(), _small_shifts()),
    lambda: _open_kind("fruit, classifier", fruit_and_weight(), {**_small_shifts(), **_SWAPPED}),
    lambda: _open_kind("script, recognizer", text_recognizer(), _small_shifts()),
    lambda: _open_kind("motion, classifier of a signal", activity(), _SIGNAL_SHIFTS),
    _open_digits,
    _open_cells,
)
"""Openers, which make missing samples; models that are small enough are trained first."""
