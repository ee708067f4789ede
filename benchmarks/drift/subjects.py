"""Models whose drift is measured, with labelled samples and shifts of the scene.

None of these models served to choose the rule or its numbers.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image, ImageFilter
from sklearn.datasets import load_breast_cancer
from sklearn.neural_network import MLPClassifier

from benchmarks.tasks import digits, ocr_rec_v6, reading
from benchmarks.tasks.task import Array, Feeds
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.text.head import TextHead

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
    """

    name: str
    run: Callable[[Feeds], dict[str, Array]]
    part: TaskOutputs
    samples: Sequence[Array]
    kinds: Array
    is_right: Callable[[dict[str, Array], int], bool]
    as_feeds: Callable[[Array], Feeds]
    shifts: Mapping[str, Shift]
    light: Callable[[Array, float], Array]


def open_subjects() -> list[Subject]:
    """Open the subjects, and make their samples if they are missing."""
    return [_open_digits(), _open_reader(), _open_cells()]


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
        light=lambda picture, light: picture * light,
    )


def _open_reader() -> Subject:
    model = ocr_rec_v6.TASK.model
    run, output = _open(str(model))
    feeds, texts = reading._samples("evaluation", *reading._LABELLED["evaluation"])
    alphabet = reading._letters(model)

    def is_right(outputs: dict[str, Array], number: int) -> bool:
        read = reading._decode(outputs[output], alphabet)
        return read.replace(" ", "") == texts[number].replace(" ", "")

    return Subject(
        name="text lines, recognizer",
        run=run,
        part=TextHead(output=output, blank=0, source="declared").part,
        samples=[(one["x"][0].transpose(1, 2, 0) + 1.0) / 2.0 for one in feeds],
        kinds=np.array([len(text) > 8 for text in texts]),
        is_right=is_right,
        as_feeds=lambda picture: {
            "x": (picture * 2.0 - 1.0).transpose(2, 0, 1)[None].astype(np.float32)
        },
        shifts=_picture_shifts(pixels=12) | {"blue for red": lambda one, _rng: one[..., ::-1]},
        light=lambda picture, light: picture * light,
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


def _picture_shifts(pixels: int) -> dict[str, Shift]:
    return {
        "dark .7": lambda one, _rng: one * 0.7,
        "dark .3": lambda one, _rng: one * 0.3,
        "noise .05": partial(_noise, spread=0.05),
        "noise .3": partial(_noise, spread=0.3),
        "blur 1.5": partial(_blur, radius=1.5),
        "blur 3": partial(_blur, radius=3.0),
        f"moved by {pixels} pixels": lambda one, _rng: np.roll(one, pixels, axis=1),
        "JPEG 20": partial(_jpeg, quality=20),
        "JPEG 5": partial(_jpeg, quality=5),
        "a third covered": _cover,
    }


def _noise(picture: Array, rng: np.random.Generator, spread: float) -> Array:
    return np.clip(picture + rng.normal(0.0, spread, picture.shape), 0.0, 1.0)


def _blur(picture: Array, _rng: np.random.Generator, radius: float) -> Array:
    return _as_array(_as_image(picture).filter(ImageFilter.GaussianBlur(radius)))


def _jpeg(picture: Array, _rng: np.random.Generator, quality: int) -> Array:
    file = io.BytesIO()
    _as_image(picture).save(file, "JPEG", quality=quality)
    return _as_array(Image.open(file))


def _cover(picture: Array, rng: np.random.Generator) -> Array:
    covered = picture.copy()
    width = picture.shape[1] // 3
    left = int(rng.integers(0, picture.shape[1] - width))
    covered[:, left : left + width] = float(picture.mean())
    return covered


def _as_image(picture: Array) -> Image.Image:
    pixels = (np.clip(picture, 0.0, 1.0) * 255).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _as_array(image: Image.Image) -> Array:
    pixels = np.asarray(image).astype(np.float64) / 255
    return pixels[..., None] if pixels.ndim == 2 else pixels
