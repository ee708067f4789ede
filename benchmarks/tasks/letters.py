"""Places of letters in a picture: a YOLOX detector (three grids, a single class).

The pictures are drawn here, so where each letter lies is known.
"""

import random
import string

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from benchmarks.tasks.boxes import Box, count_matches, overlap
from benchmarks.tasks.places import cached_arrays, package_folder
from benchmarks.tasks.task import Array, Feeds, Part, Run, Task
from benchmarks.tasks.text_images import random_font

_SIZE = 416
_STRIDES = (8, 16, 32)
_SCORE_FROM, _SAME_FROM = 0.1, 0.45
"""Of the package itself: boxes with lower scores are dropped, and of two that overlap more, one."""
_CALIBRATION_COUNT, _CALIBRATION_SEED = 100, 91
_LABELLED: dict[Part, tuple[int, int]] = {"development": (50, 95), "evaluation": (150, 94)}
"""Number of pictures and seed of each set."""
_MOST_LETTERS = 6


def _background(rng: random.Random) -> Image.Image:
    """Draw large soft patches of colour, like a photograph out of focus."""
    noise = np.random.default_rng(rng.getrandbits(32))
    patches = noise.integers(0, 256, (rng.randint(3, 9), rng.randint(3, 9), 3), np.uint8)
    return Image.fromarray(patches).resize((_SIZE, _SIZE), resample=Image.Resampling.BICUBIC)


def _draw_letter(rng: random.Random) -> Image.Image:
    """Draw a letter, turned, transparent, cut to its ink."""
    font = random_font(rng, 40, 90)
    letter = Image.new("L", (200, 200))
    ImageDraw.Draw(letter).text((60, 40), rng.choice(string.ascii_letters), font=font, fill=255)
    turned = letter.rotate(rng.uniform(-40, 40), resample=Image.Resampling.BICUBIC)
    return turned.crop(turned.getbbox())


def _draw(rng: random.Random) -> tuple[Array, list[Box]]:
    picture = _background(rng)
    boxes: list[Box] = []
    for _ in range(rng.randint(2, _MOST_LETTERS)):
        letter = _draw_letter(rng)
        left, top = rng.randint(4, _SIZE - 104), rng.randint(4, _SIZE - 104)
        box = Box(left, top, left + letter.width, top + letter.height)
        if any(overlap(box, other) > 0 for other in boxes) or max(box) > _SIZE - 2:
            continue
        ink = tuple(rng.randint(0, 255) for _ in range(3))
        edge = letter.filter(ImageFilter.MaxFilter(3))
        picture.paste((255, 255, 255) if sum(ink) < 384 else (0, 0, 0), (left, top), edge)
        picture.paste(ink, (left, top), letter)
        boxes.append(box)
    pixels = np.asarray(picture).astype(np.float32)
    noise = np.random.default_rng(rng.getrandbits(32))
    noisy = pixels + noise.normal(0, rng.uniform(0, 10), pixels.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8), boxes


def _make(count: int, seed: int) -> dict[str, Array]:
    rng = random.Random(seed)
    pictures, boxes = [], np.zeros((count, _MOST_LETTERS, 4), np.float32)
    for number in range(count):
        picture, drawn = _draw(rng)
        pictures.append(picture)
        boxes[number, : len(drawn)] = drawn
    return {"pictures": np.stack(pictures), "boxes": boxes}


def _samples(name: str, count: int, seed: int) -> tuple[list[Feeds], list[list[Box]]]:
    arrays = cached_arrays(f"letters_{name}", lambda: _make(count, seed))
    feeds: list[Feeds] = [
        {"images": picture[None, :, :, ::-1].transpose(0, 3, 1, 2).astype(np.float32)}
        for picture in arrays["pictures"]
    ]
    boxes = [[Box(*box) for box in row.tolist() if any(box)] for row in arrays["boxes"]]
    return feeds, boxes


def _find(rows: Array) -> list[Box]:
    """Return boxes of YOLOX's rows: centre in cells and logarithm of the size, by grid, and two
    scores.

    Args:
        rows: float32 (cells, 6).
    """
    cells, strides = [], []
    for stride in _STRIDES:
        count = _SIZE // stride
        vertical, horizontal = np.mgrid[:count, :count]
        cells.append(np.stack([horizontal.ravel(), vertical.ravel()], axis=1))
        strides.append(np.full((count * count, 1), stride))
    stride_of = np.concatenate(strides)
    centre = (rows[:, :2] + np.concatenate(cells)) * stride_of
    half = np.exp(rows[:, 2:4]) * stride_of / 2
    scores = rows[:, 4] * rows[:, 5]
    kept: list[Box] = []
    for index in np.argsort(-scores):
        if scores[index] < _SCORE_FROM:
            break
        box = Box(*(centre[index] - half[index]).tolist(), *(centre[index] + half[index]).tolist())
        if all(overlap(box, other) <= _SAME_FROM for other in kept):
            kept.append(box)
    return kept


def _score(run: Run, part: Part) -> float:
    """Return F1 of all boxes, found at an intersection over union of at least one half."""
    matched = found_count = drawn_count = 0
    for sample, drawn in zip(*_samples(part, *_LABELLED[part]), strict=True):
        (rows,) = run(sample).values()
        found = _find(rows[0])
        matched += count_matches(found, drawn)
        found_count += len(found)
        drawn_count += len(drawn)
    return 2 * matched / max(1, found_count + drawn_count)


def score_development(run: Run) -> float:
    """Return the metric for a build's choice: `edgepack build --metric`."""
    return _score(run, "development")


TASK = Task(
    name="letters",
    model=package_folder("ddddocr") / "common_det.onnx",
    shapes={"images": (1, 3, _SIZE, _SIZE)},
    metric="F1 of boxes",
    calibration=lambda: _samples("calibration", _CALIBRATION_COUNT, _CALIBRATION_SEED)[0],
    score=_score,
)
