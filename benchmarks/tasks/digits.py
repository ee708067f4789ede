"""Handwritten digits: a small depthwise CNN on scikit-learn's own data set.

The network (ReLU6, folded batch norms with uneven channel scales) was trained on the first 1,000
shuffled images, which calibration and development therefore use too; the last 797 are evaluated.
"""

from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from benchmarks.tasks.places import cached_arrays
from benchmarks.tasks.task import Array, Feeds, Part, Run, Task, accuracy

_CALIBRATION = slice(0, 200)
_LABELLED: dict[Part, slice] = {"development": slice(200, 600), "evaluation": slice(1000, 1797)}


def _make() -> dict[str, Array]:
    digits = load_digits()
    larger = [
        Image.fromarray((image * 15.9).astype(np.uint8)).resize(
            (32, 32), resample=Image.Resampling.BICUBIC
        )
        for image in digits.images
    ]
    images = np.stack([np.asarray(image) for image in larger]).astype(np.float32) / 255
    order = np.random.default_rng(0).permutation(len(images))
    return {
        "images": images[order, None].astype(np.float16),
        "labels": digits.target[order].astype(np.int64),
    }


@cache
def _samples() -> dict[str, Array]:
    return cached_arrays("digits", _make)


def _feeds(part: slice) -> list[Feeds]:
    return [{"x": image[None].astype(np.float32)} for image in _samples()["images"][part]]


def _score(run: Run, part: Part) -> float:
    chosen = _LABELLED[part]
    return accuracy(run, _feeds(chosen), _samples()["labels"][chosen].tolist())


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return _score(run, "development")


TASK = Task(
    name="digits",
    model=Path(__file__).with_name("digits.onnx"),
    metric="accuracy",
    calibration=lambda: _feeds(_CALIBRATION),
    score=_score,
)
