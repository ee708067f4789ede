"""Rows of classes that are text, and rows that label frames.

Text is what recognizers of text in Python packages give for drawn lines. Labels of frames are those
of a linear classifier of drawn frames: phonemes, chords, states of a machine, sleep.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from benchmarks.evidence.known import Case
from benchmarks.task_kinds.kind import Half
from benchmarks.tasks.places import package_folder, unpacked_folder
from benchmarks.tasks.task import Array
from edgepack.agent.runtime.opening import open_model_file
from edgepack.tasks.text.decoding import settle
from edgepack.tasks.text.head import TextHead

QUESTION = "Are the classes of steps characters with a blank?"

_LINES = (
    "net weight 12 kg",
    "Made in Germany",
    "check valve 7 daily",
    "AB-1234",
    "total",
    "high voltage warning",
    "bookkeeper 1100",
    "pressure 48.50 kPa",
)
_SIZES = (24, 34)
_FRAMES, _FEATURES, _CLIPS = 200, 12, 8
_LABELS = {
    "phonemes": (40, 8.0, 0.15),
    "slow phonemes": (40, 14.0, 0.3),
    "chords": (25, 10.0, 0.05),
    "states of a machine": (8, 30.0, 0.4),
    "sleep": (8, 12.0, 0.3),
    "drum strokes": (9, 5.0, 0.6),
    "letters of a plate, one a step": (36, 1.0, 0.03),
    "tags of words": (17, 1.1, 0.1),
}
"""Classes, frames of a label on average, and share of the first class."""
_DEVELOPED = ("phonemes", "tags of words")


def cases(work: Path) -> Iterator[Case]:
    """Yield the cases.

    Args:
        work: Folder for the models.
    """
    for name, half, path, gray in _recognizers():
        session = open_model_file(path)
        feed = session.inputs[0].name
        for size in _SIZES:
            rows = [
                next(iter(session.run({feed: _draw(line, size, gray)}).values())) for line in _LINES
            ]
            yield Case(f"{name}, letters of {size}", half, True, partial(_is_text, rows))
        session.close()
    for number, name in enumerate(_LABELS):
        rows = list(_label(number, *_LABELS[name]))
        half: Half = "developed" if name in _DEVELOPED else "independent"
        yield Case(name, half, False, partial(_is_text, rows))


def _recognizers() -> Iterator[tuple[str, Half, Path, bool]]:
    """Yield the name, half and file of each recognizer, and if it takes gray pictures."""
    fourth, sixth = package_folder("rapidocr_onnxruntime"), package_folder("rapidocr")
    third = unpacked_folder("rapidocr-onnxruntime==1.2.3", "rapidocr_onnxruntime")
    yield "PP-OCRv4", "developed", fourth / "models" / "ch_PP-OCRv4_rec_infer.onnx", False
    yield "PP-OCRv6", "developed", sixth / "models" / "PP-OCRv6_rec_small.onnx", False
    yield "PP-OCRv3", "developed", third / "models" / "ch_PP-OCRv3_rec_infer.onnx", False
    yield "ddddocr", "independent", package_folder("ddddocr") / "common.onnx", True
    yield "ddddocr, old", "independent", package_folder("ddddocr") / "common_old.onnx", True


def _is_text(rows: list[Array]) -> bool:
    return settle(TextHead(output="y"), [{"y": one} for one in rows]) is not None


def _draw(line: str, size: int, gray: bool) -> Array:
    """Return the pixels of a line, as its recognizer takes them."""
    height = 64 if gray else 48
    font = ImageFont.load_default(size)
    width = int(font.getlength(line)) + 16
    page = Image.new("L", (width, 48), 245)
    ImageDraw.Draw(page).text((8, (44 - size) // 2), line, font=font, fill=25)
    page = page.resize((width * height // 48 // 8 * 8, height))
    pixels = np.asarray(page, np.float32)[None, None] / 127.5 - 1
    return pixels if gray else np.repeat(pixels, 3, axis=1)


def _label(seed: int, classes: int, frames: float, first: float) -> Iterator[Array]:
    """Yield the shares of classes of the frames of each clip."""
    rng = np.random.default_rng([17, seed])
    means = rng.normal(0, 3.0, (classes, _FEATURES))
    shares = np.array([first, *[(1 - first) / (classes - 1)] * (classes - 1)])
    for _ in range(_CLIPS):
        labels: list[int] = []
        while len(labels) < _FRAMES:
            label = int(rng.choice(classes, p=shares))
            if not labels or label != labels[-1]:
                labels += [label] * max(round(rng.exponential(frames - 1) + 1), 1)
        x = means[labels[:_FRAMES]] + rng.normal(0, 1, (_FRAMES, _FEATURES))
        logits = x @ means.T - (means**2).sum(axis=1) / 2
        scaled = np.exp(logits - logits.max(axis=1, keepdims=True))
        yield (scaled / scaled.sum(axis=1, keepdims=True)).astype(np.float32)[None]
