"""Text on a page: drawn pages, with known places of the lines."""

import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from benchmarks.tasks.boxes import Box, count_matches, find_boxes
from benchmarks.tasks.places import cached_arrays
from benchmarks.tasks.task import Array, Feeds, Part, Run, Task
from benchmarks.tasks.text import all_words, short_line
from benchmarks.tasks.text_images import as_paddle_input, random_font

_SIZE = 320
_CALIBRATION_COUNT, _CALIBRATION_SEED = 100, 71
_LABELLED: dict[Part, tuple[int, int]] = {"development": (40, 75), "evaluation": (100, 74)}
"""Number of pages and seed of each set."""
_MOST_LINES = 7
_GAP = 14
"""Pixels between lines: nearer ones grow together when their boxes are widened."""


def _draw_page(rng: random.Random, words: list[str]) -> tuple[Array, list[Box]]:
    """Return a page with some lines, and their boxes: from ascender to descender, as marked by
    people.

    A box around the ink of a line without either is half as tall as the boxes of the model's
    training.
    """
    paper = rng.randint(150, 255)
    ink = rng.randint(0, paper - 110)
    if rng.random() < 0.2:
        paper, ink = ink, paper
    page = Image.new("RGB", (_SIZE, _SIZE), (paper, paper, paper))
    draw = ImageDraw.Draw(page)
    boxes: list[Box] = []
    top = rng.randint(6, 40)
    while len(boxes) < _MOST_LINES:
        font = random_font(rng, 14, 34)
        text = short_line(rng, words, longest=rng.randint(6, 22))
        box = Box(*draw.textbbox((0, 0), text, font=font))
        width, height = box.right - box.left, box.bottom - box.top
        if top + height > _SIZE - 6:
            break
        if width > _SIZE - 12 or len(text) < 4:
            continue
        start = rng.randint(6, int(_SIZE - 6 - width))
        origin = top - box.top
        draw.text((start - box.left, origin), text, font=font, fill=(ink, ink, ink))
        boxes.append(Box(start, origin, start + width, origin + sum(font.getmetrics())))
        top += int(height) + rng.randint(_GAP, 3 * _GAP)
    if rng.random() < 0.5:
        page = page.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.0)))
    noise = np.random.default_rng(rng.getrandbits(32))
    noisy = np.asarray(page) + noise.normal(0, rng.uniform(0, 12), (_SIZE, _SIZE, 1))
    return np.clip(noisy, 0, 255).astype(np.uint8), boxes


def _make(count: int, seed: int) -> dict[str, Array]:
    rng = random.Random(seed)
    words = all_words()
    pages, boxes = [], np.zeros((count, _MOST_LINES, 4), np.float32)
    for number in range(count):
        page, drawn = _draw_page(rng, words)
        pages.append(page)
        boxes[number, : len(drawn)] = drawn
    return {"pages": np.stack(pages), "boxes": boxes}


def _samples(name: str, count: int, seed: int) -> tuple[list[Feeds], list[list[Box]]]:
    arrays = cached_arrays(f"ocr_det_pages_{name}", lambda: _make(count, seed))
    feeds: list[Feeds] = [{"x": as_paddle_input(page, _SIZE, _SIZE)} for page in arrays["pages"]]
    boxes = [[Box(*box) for box in page.tolist() if any(box)] for page in arrays["boxes"]]
    return feeds, boxes


def _score(run: Run, part: Part) -> float:
    """Return F1 of all boxes, found at an intersection over union of at least one half."""
    matched = found_count = drawn_count = 0
    for sample, drawn in zip(*_samples(part, *_LABELLED[part]), strict=True):
        (probabilities,) = run(sample).values()
        found = find_boxes(probabilities[0, 0])
        matched += count_matches(found, drawn)
        found_count += len(found)
        drawn_count += len(drawn)
    return 2 * matched / max(1, found_count + drawn_count)


def text_detection_task(name: str, model: Path) -> Task:
    """Return the task for a model with a map of probabilities, like PaddleOCR's detectors.

    Args:
        name: The task's name.
        model: Its file.
    """
    return Task(
        name=name,
        model=model,
        shapes={"x": (1, 3, _SIZE, _SIZE)},
        metric="F1 of boxes",
        calibration=lambda: _samples("calibration", _CALIBRATION_COUNT, _CALIBRATION_SEED)[0],
        score=_score,
    )
