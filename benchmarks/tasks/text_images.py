"""Rendered lines of text, like camera pictures, with their text."""

import random
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks.tasks.places import package_folder

Rgb = npt.NDArray[np.uint8]
"""An image: uint8 (height, width, 3)."""

_FONT_NAMES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "STIXGeneral", "STIXGeneralBol", "cmr10", "cmss10"),
)


@cache
def _fonts() -> tuple[Path, ...]:
    folder = package_folder("matplotlib") / "mpl-data" / "fonts" / "ttf"
    return tuple(folder / f"{name}.ttf" for name in _FONT_NAMES)


def random_font(rng: random.Random, smallest: int, largest: int) -> ImageFont.FreeTypeFont:
    """Return one of a dozen fonts, in a size between two, pixels."""
    return ImageFont.truetype(rng.choice(_fonts()), rng.randint(smallest, largest))


def render_line(rng: random.Random, text: str) -> Rgb:
    """Draw a line: random font, size and colours, then camera effects."""
    font = random_font(rng, 18, 44)
    left, top, right, bottom = font.getbbox(text)
    pad_x, pad_y = rng.randint(2, 10), rng.randint(2, 8)
    paper = rng.randint(120, 255)
    ink = rng.randint(0, max(0, paper - 90))
    if rng.random() < 0.15:
        paper, ink = ink, paper
    tint = [rng.randint(-25, 25) for _ in range(3)]
    size = (int(right - left) + 2 * pad_x, int(bottom - top) + 2 * pad_y)
    image = Image.new("RGB", size, _tinted(paper, tint))
    draw = ImageDraw.Draw(image)
    draw.text((pad_x - left, pad_y - top), text, font=font, fill=_tinted(ink, tint[::-1]))
    return _degrade(rng, image)


def as_paddle_input(image: Rgb, height: int, width: int) -> npt.NDArray[np.float32]:
    """Scale to the height, keep the aspect, pad on the right: the input of PaddleOCR's models.

    Returns:
        float32 (1, 3, height, width), BGR, -1 … 1, zero where there is no image.
    """
    scaled_width = min(width, int(np.ceil(height * image.shape[1] / image.shape[0])))
    scaled = Image.fromarray(image).resize(
        (scaled_width, height), resample=Image.Resampling.BILINEAR
    )
    bgr = np.asarray(scaled).astype(np.float32)[:, :, ::-1] / 127.5 - 1
    padded = np.zeros((1, 3, height, width), np.float32)
    padded[0, :, :, :scaled_width] = bgr.transpose(2, 0, 1)
    return padded


def _tinted(grey: int, tint: list[int]) -> tuple[int, int, int]:
    red, green, blue = (max(0, min(255, grey + shift)) for shift in tint)
    return red, green, blue


def _degrade(rng: random.Random, image: Image.Image) -> Rgb:
    """Turn a little, perhaps blur, perhaps lose resolution, add noise."""
    image = image.rotate(
        rng.uniform(-2.0, 2.0),
        resample=Image.Resampling.BICUBIC,
        fillcolor=image.getpixel((0, 0)),
    )
    if rng.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.1)))
    if rng.random() < 0.4:
        scale = rng.uniform(0.45, 0.8)
        smaller = (max(8, int(image.width * scale)), max(8, int(image.height * scale)))
        image = image.resize(smaller, resample=Image.Resampling.BILINEAR)
    pixels = np.asarray(image).astype(np.float32)
    noise = np.random.default_rng(rng.getrandbits(32))
    noisy = pixels + noise.normal(0, rng.uniform(0, 14), pixels.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)
