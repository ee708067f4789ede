"""Pages that tests draw, and what `rapidocr-onnxruntime` 1.4.4 reads on these.

The texts were recorded with that package's own program and `det_limit_side_len=224`, OpenCV 5.0 and
ONNX Runtime 1.31.1.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

_LINES = (
    ("Serial No. AB-1234", 22),
    ("pressure 48.50 kPa", 30),
    ("keep dry this side up", 18),
    ("total amount 2026", 26),
    ("Made in Germany", 34),
    ("check valve 7 daily", 20),
    ("net weight 12 kg", 28),
    ("high voltage warning", 24),
)

READ_BY_RAPIDOCR = (
    ("Serial No.AB-1234", "pressure 48.50 kPa", "keep dry this side up"),
    ("totalamount2026", "Made in Germany", "check valve 7 daily"),
    ("net weight 12 kg", "high voltage warning", "Serial No.AB-1234"),
    ("pressure 48.50 kPa", "keep dry this side up", "total amount 2026"),
    ("Made in Germany", "check valve 7 daily", "net weight 12 kg"),
    ("highvoltagewarning", "SerialNo.AB-1234", "pressure 48.50 kPa"),
    ("keep dry this side up", "total amount 2026", "Made in Germany"),
    ("high voltage warning", "net weight 12 kg", "checkvalve7daily"),
    ("SerialNo.AB-1234", "pressure 48.50 kPa", "keep dry this side up"),
)
"""Page 7 is upside down, and pages 2, 5 and 8 are slanted."""


def draw_page(number: int) -> npt.NDArray[np.uint8]:
    """Draw three lines, uint8 (height, width, 3)."""
    chosen = [_LINES[(number * 3 + step) % len(_LINES)] for step in range(3)]
    ink, paper = ((20, 20, 20), (250, 248, 240)) if number % 2 else ((240, 240, 240), (30, 34, 40))
    page = Image.new("RGB", (400, 200), paper)
    canvas = ImageDraw.Draw(page)
    for row, (text, size) in enumerate(chosen):
        place = (18 + 7 * row, 14 + 58 * row)
        canvas.text(place, text, font=ImageFont.load_default(size), fill=ink)
    if number % 3 == 2:
        page = page.rotate(3, fillcolor=paper, resample=Image.Resampling.BICUBIC)
    return np.asarray(page.rotate(180) if number == 7 else page)


def save_pages(folder: Path, numbers: Iterable[int]) -> Path:
    """Write pages as files."""
    folder.mkdir()
    for number in numbers:
        Image.fromarray(draw_page(number)).save(folder / f"{number}.png")
    return folder
