"""Real input for the demo: photographs of text lines, drawn here, half of them upside down.

The words are those of Python's own documentation, which every Python carries; the font is the
one inside Pillow. The task is that of the model (PP-OCR text-line orientation): is the line
upright or turned by 180 degrees?
"""

import random
import re
from collections.abc import Iterator
from pydoc_data import topics

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont

HEIGHT, WIDTH = 48, 192

Line = tuple[npt.NDArray[np.float32], int]
"""A model input, float32 (1, 3, 48, 192), and 0 for upright or 1 for upside down."""


def text_lines(count: int, *, seed: int) -> Iterator[Line]:
    """Draws `count` lines; the same seed gives the same lines."""
    rng = random.Random(seed)
    words = re.findall(
        r"[A-Za-z]{2,}", " ".join(topics.topics[key] for key in sorted(topics.topics))
    )
    for _ in range(count):
        start = rng.randrange(len(words) - 3)
        text = " ".join(words[start : start + rng.randint(1, 3)])[:16]
        picture = _draw(text, rng)
        label = rng.randint(0, 1)
        yield _as_input(picture.rotate(180) if label else picture), label


def _draw(text: str, rng: random.Random) -> Image.Image:
    """One line of dark text on a light ground, slightly turned, blurred and noisy."""
    font = ImageFont.load_default(rng.randint(20, 40))
    left, top, right, bottom = ImageDraw.Draw(Image.new("L", (1, 1))).textbbox((0, 0), text, font)
    pad_x, pad_y = rng.randint(3, 10), rng.randint(3, 8)
    ground = rng.randint(150, 255)
    size = (int(right - left) + 2 * pad_x, int(bottom - top) + 2 * pad_y)
    picture = Image.new("RGB", size, (ground,) * 3)
    ink = rng.randint(0, ground - 90)
    ImageDraw.Draw(picture).text((pad_x - left, pad_y - top), text, font=font, fill=(ink,) * 3)
    picture = picture.rotate(rng.uniform(-2, 2), Image.Resampling.BICUBIC, fillcolor=(ground,) * 3)
    if rng.random() < 0.5:
        picture = picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.0)))
    pixels = np.asarray(picture, np.float32)
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, rng.uniform(0, 12), pixels.shape)
    return Image.fromarray(np.clip(pixels + noise, 0, 255).astype(np.uint8))


def _as_input(picture: Image.Image) -> npt.NDArray[np.float32]:
    """Scales to 48 pixels in height, normalizes to -1..1 in BGR order, pads to the right."""
    width = min(WIDTH, max(1, round(HEIGHT * picture.width / picture.height)))
    scaled = picture.resize((width, HEIGHT), Image.Resampling.BILINEAR)
    pixels = np.asarray(scaled, np.float32)[:, :, ::-1] / 127.5 - 1
    padded = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
    padded[0, :, :, :width] = pixels.transpose(2, 0, 1)
    return padded
