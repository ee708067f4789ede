"""Drawn pages, and the bundle of PP-OCR that reads them."""

import random
import shutil
from pathlib import Path

from PIL import Image, ImageDraw

from benchmarks.tasks.places import ROOT, package_folder
from benchmarks.tasks.text import all_words, short_line
from benchmarks.tasks.text_images import random_font

EXAMPLE = ROOT / "examples" / "pages"
SIDE = 320
_SIZE, _ROWS = (400, 200), 3
_VARIANTS = """
[[variant]]
name = "fixed"
stages = { detect = "fixed.toml", read = "fixed.toml" }

[[variant]]
name = "qnn-htp"
stages = { detect = "qnn-htp", turn = "qnn-htp", read = "qnn-htp" }

[[variant]]
name = "parts"
stages = { detect = "npu.toml", turn = "npu.toml", read = "npu.toml" }
"""
_FIXED = """
[profile]
name = "fixed"
extends = "fp32"
[limits]
static_shapes = true
"""


def draw_pages(folder: Path, count: int, seed: int) -> Path:
    """Write pages of three lines, in a dozen fonts.

    Args:
        folder: Created.
        count: How many.
        seed: Of the texts and fonts.
    """
    rng = random.Random(seed)
    words = all_words()
    folder.mkdir(parents=True)
    for number in range(count):
        ink, paper = ((20,) * 3, (250, 248, 240)) if number % 2 else ((240,) * 3, (30, 34, 40))
        page = Image.new("RGB", _SIZE, paper)
        canvas = ImageDraw.Draw(page)
        for row in range(_ROWS):
            font = random_font(rng, 18, 32)
            text = short_line(rng, words, longest=22)
            while font.getlength(text) > _SIZE[0] - 48:
                text = short_line(rng, words, longest=22)
            canvas.text((14 + 7 * row, 14 + 60 * row), text, font=font, fill=ink)
        if number % 3 == 2:
            page = page.rotate(3, fillcolor=paper, resample=Image.Resampling.BICUBIC)
        page.save(folder / f"{number:02}.png")
    return folder


def write_pipeline(folder: Path) -> Path:
    """Write the pipeline with its variants; each quantized stage is kept, whatever it loses.

    Args:
        folder: Created.
    """
    folder.mkdir(parents=True)
    for model in (package_folder("rapidocr_onnxruntime") / "models").glob("*.onnx"):
        shutil.copy(model, folder)
    shutil.copy(EXAMPLE / "npu.toml", folder)
    (folder / "fixed.toml").write_text(_FIXED)
    text = (EXAMPLE / "pipeline.toml").read_text()
    text = text.replace(
        'output = "page"\n', f'output = "page"\nfit = "page"\nleast_side = {SIDE}\n'
    )
    text = text.replace('task = "pages"\n', 'task = "pages"\nkeep = 0.0\n')
    (folder / "pipeline.toml").write_text(text.replace("736, 960", "320, 640") + _VARIANTS)
    return folder
