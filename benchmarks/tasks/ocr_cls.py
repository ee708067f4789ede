"""Orientation of a line of text: PP-OCR's orientation classifier on rendered lines.

A MobileNetV3 exported from Paddle, with weights as Constant nodes.
"""

import random

import numpy as np

from benchmarks.tasks.places import cached_arrays, package_folder
from benchmarks.tasks.task import Array, Feeds, Part, Run, Task, accuracy
from benchmarks.tasks.text import all_words, short_line
from benchmarks.tasks.text_images import as_paddle_input, render_line

_HEIGHT, _WIDTH = 48, 192
_CALIBRATION_COUNT, _CALIBRATION_SEED = 200, 33
_LABELLED: dict[Part, tuple[int, int]] = {"development": (300, 55), "evaluation": (600, 44)}
"""Number of lines and seed of each set."""


def _make(count: int, seed: int) -> dict[str, Array]:
    rng = random.Random(seed)
    words = all_words()
    images: list[Array] = []
    is_turned: list[int] = []
    while len(images) < count:
        text = short_line(rng, words, longest=16)
        if len(text) < 5:
            continue
        image = render_line(rng, text)
        turn = rng.randint(0, 1)
        if turn:
            image = image[::-1, ::-1].copy()
        images.append(as_paddle_input(image, _HEIGHT, _WIDTH))
        is_turned.append(turn)
    return {"images": np.concatenate(images).astype(np.float16), "labels": np.array(is_turned)}


def _samples(name: str, count: int, seed: int) -> tuple[list[Feeds], list[int]]:
    arrays = cached_arrays(f"ocr_cls_{name}", lambda: _make(count, seed))
    feeds: list[Feeds] = [{"x": image[None].astype(np.float32)} for image in arrays["images"]]
    return feeds, arrays["labels"].tolist()


def _score(run: Run, part: Part) -> float:
    return accuracy(run, *_samples(part, *_LABELLED[part]))


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return _score(run, "development")


TASK = Task(
    name="ocr_cls",
    model=package_folder("rapidocr_onnxruntime") / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    shapes={"x": (1, 3, _HEIGHT, _WIDTH)},
    metric="accuracy",
    calibration=lambda: _samples("calibration", _CALIBRATION_COUNT, _CALIBRATION_SEED)[0],
    score=_score,
)
