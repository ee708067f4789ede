"""Draw pictures of single digits like a camera on a water meter.

    python -m examples.meter.pictures FOLDER COUNT SEED

The digit of a picture is the last character of its file's name. Font: Pillow's own.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont

SIZE = 64
"""Pixels, height and width."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of pixels in 0..1, by channel: the model was trained on pictures normalized so."""


def pictures(count: int, *, seed: int) -> Iterator[tuple[Image.Image, int]]:
    """Yield `count` RGB pictures (64 x 64) and their digits; equal seeds give equal pictures."""
    chance = random.Random(seed)
    for _ in range(count):
        digit = chance.randrange(10)
        yield _draw(digit, chance), digit


def as_input(picture: Image.Image) -> npt.NDArray[np.float32]:
    """Return a picture as the model's input, float32 (1, 3, 64, 64), normalized."""
    pixels = (np.asarray(picture, np.float32) / 255 - MEAN) / STD
    return pixels.transpose(2, 0, 1)[None].astype(np.float32)


def _draw(digit: int, chance: random.Random) -> Image.Image:
    """Draw a wheel of a meter: light digit on a dark wheel or the reverse, lit unevenly."""
    light, dark = chance.randint(150, 255), chance.randint(0, 90)
    ground, ink = (dark, light) if chance.random() < 0.7 else (light, dark)
    picture = Image.new("RGB", (SIZE * 2, SIZE * 2), _tint(ground, chance))
    pen = ImageDraw.Draw(picture)
    font = ImageFont.load_default(chance.randint(70, 105))
    x, y = SIZE + chance.randint(-12, 12), SIZE + chance.randint(-14, 14)
    pen.text((x, y), str(digit), _tint(ink, chance), font, anchor="mm")
    if chance.random() < 0.3:  # the wheel turns: the next digit comes into view
        pen.text((x, y + 2 * SIZE - 30), str((digit + 1) % 10), _tint(ink, chance), font, "mm")
    picture = picture.rotate(chance.uniform(-12, 12), Image.Resampling.BICUBIC)
    picture = picture.filter(ImageFilter.GaussianBlur(chance.uniform(0.5, 3.0)))
    picture = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    shade = Image.linear_gradient("L").resize((SIZE, SIZE)).rotate(chance.choice((0, 90, 180, 270)))
    black = Image.new("RGB", (SIZE, SIZE))
    lit = Image.composite(picture, black, shade.point(lambda v: 255 - int(v * 0.5)))
    noise = Image.frombytes("L", (SIZE, SIZE), chance.randbytes(SIZE * SIZE)).convert("RGB")
    return Image.blend(lit, noise, chance.uniform(0.0, 0.2))


def _tint(level: int, chance: random.Random) -> tuple[int, int, int]:
    """Return a colour near a level of grey."""
    red, green, blue = (max(0, min(255, level + chance.randint(-25, 25))) for _ in range(3))
    return red, green, blue


def main(folder: Path, count: int, seed: int) -> None:
    """Write pictures as PNG files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (picture, digit) in enumerate(pictures(count, seed=seed)):
        picture.save(folder / f"{number:04}-{digit}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
