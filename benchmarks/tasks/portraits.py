"""Parts of a person in a picture: NudeNet's detector (YOLOv8, 18 classes).

The pictures are a portrait (Grace Hopper's, shipped with Matplotlib), drawn once to three times in
any size, turn and light before soft patches of colour or a photograph. No person has marked the
pictures, so the float model's own boxes are the truth, found by the package's own method.
"""

import random
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from benchmarks.tasks.boxes import Box, count_matches, overlap
from benchmarks.tasks.float_model import open_float_model
from benchmarks.tasks.places import cached_arrays, package_folder, unpacked_folder
from benchmarks.tasks.task import Array, Feeds, Part, Run, Task

_SIZE = 320
_SCORE_FROM, _SAME_FROM = 0.25, 0.45
"""Of the package itself: boxes with lower scores are dropped, and of two that overlap more, one."""
_CALIBRATION_COUNT, _CALIBRATION_SEED = 100, 31
_LABELLED: dict[Part, tuple[int, int]] = {"development": (50, 35), "evaluation": (150, 34)}
"""Number of pictures and seed of each set."""
_MODEL = unpacked_folder("nudenet==3.4.2", "nudenet") / "320n.onnx"
_PORTRAIT = Path("mpl-data") / "sample_data" / "grace_hopper.jpg"
_PHOTOGRAPHS = ("china.jpg", "flower.jpg")


@cache
def _photograph(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


def _background(rng: random.Random) -> Image.Image:
    if rng.random() < 0.5:
        folder = package_folder("sklearn") / "datasets" / "images"
        whole = _photograph(folder / rng.choice(_PHOTOGRAPHS))
        left, top = rng.randint(0, whole.width - _SIZE), rng.randint(0, whole.height - _SIZE)
        return whole.crop((left, top, left + _SIZE, top + _SIZE))
    noise = np.random.default_rng(rng.getrandbits(32))
    patches = noise.integers(0, 256, (rng.randint(3, 9), rng.randint(3, 9), 3), np.uint8)
    return Image.fromarray(patches).resize((_SIZE, _SIZE), resample=Image.Resampling.BICUBIC)


def _draw(rng: random.Random) -> Array:
    picture = _background(rng)
    portrait = _photograph(package_folder("matplotlib") / _PORTRAIT)
    for _ in range(rng.randint(1, 3)):
        height = rng.randint(90, 310)
        person = portrait.resize((portrait.width * height // portrait.height, height))
        if rng.random() < 0.5:
            person = person.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        person = ImageEnhance.Brightness(person).enhance(rng.uniform(0.5, 1.4))
        mask = Image.new("L", person.size, 255)
        angle = rng.uniform(-25, 25)
        turned = person.rotate(angle, resample=Image.Resampling.BICUBIC, expand=True)
        mask = mask.rotate(angle, expand=True)
        place = (rng.randint(-40, _SIZE - 80), rng.randint(-40, _SIZE - 80))
        picture.paste(turned, place, mask)
    if rng.random() < 0.5:
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.2)))
    pixels = np.asarray(picture).astype(np.float32)
    noise = np.random.default_rng(rng.getrandbits(32))
    noisy = pixels + noise.normal(0, rng.uniform(0, 8), pixels.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def _make(count: int, seed: int) -> dict[str, Array]:
    rng = random.Random(seed)
    return {"pictures": np.stack([_draw(rng) for _ in range(count)])}


def _samples(name: str, count: int, seed: int) -> list[Feeds]:
    arrays = cached_arrays(f"portraits_{name}", lambda: _make(count, seed))
    return [
        {"images": picture[None].transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)}
        for picture in arrays["pictures"]
    ]


def _find(rows: Array) -> list[list[Box]]:
    """Return boxes of YOLOv8's columns by class: centre, size, and a score for each class.

    Args:
        rows: float32 (4 + classes, places), pixels.
    """
    classes = rows[4:].argmax(axis=0)
    scores = rows[4:].max(axis=0)
    found: list[list[Box]] = [[] for _ in rows[4:]]
    for index in np.argsort(-scores):
        if scores[index] < _SCORE_FROM:
            break
        x, y, width, height = rows[:4, index].tolist()
        box = Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        kept = found[classes[index]]
        if all(overlap(box, other) <= _SAME_FROM for other in kept):
            kept.append(box)
    return found


@cache
def _expected(part: Part) -> list[list[list[Box]]]:
    run = open_float_model(_MODEL)
    return [_find(run(sample)["output0"][0]) for sample in _samples(part, *_LABELLED[part])]


def _score(run: Run, part: Part) -> float:
    """Return F1 of all boxes against the float model's, with equal class and half of their union in
    common.
    """
    matched = found_count = expected_count = 0
    for sample, expected in zip(_samples(part, *_LABELLED[part]), _expected(part), strict=True):
        (rows,) = run(sample).values()
        for found, same in zip(_find(rows[0]), expected, strict=True):
            matched += count_matches(found, same)
            found_count += len(found)
            expected_count += len(same)
    return 2 * matched / max(1, found_count + expected_count)


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return _score(run, "development")


TASK = Task(
    name="portraits",
    model=_MODEL,
    shapes={"images": (1, 3, _SIZE, _SIZE)},
    metric="F1 of the float model's boxes",
    calibration=lambda: _samples("calibration", _CALIBRATION_COUNT, _CALIBRATION_SEED),
    score=_score,
)
