"""Pictures of noise, and descriptions of inputs."""

import io
from typing import Any

import numpy as np
from PIL import Image

from edgepack.tasks.inputs import PictureInput

SETTINGS: dict[str, Any] = {
    "name": "x",
    "layout": "NCHW",
    "color": "RGB",
    "height": 24,
    "width": 32,
    "resize": "stretch",
    "filter": "bilinear",
    "pad": 114,
    "scale": 1 / 255,
    "mean": (0.5,),
    "std": (0.25,),
    "dtype": "float32",
}


def described(**changes: Any) -> PictureInput:
    return PictureInput(**(SETTINGS | changes))


def noise(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(values).convert(mode)


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    target = io.BytesIO()
    image.save(target, form, **options)
    return target.getvalue()
