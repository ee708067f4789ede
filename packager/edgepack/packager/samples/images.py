"""Images as model input, by the declared preprocessing."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import ImageInput, image_size
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.arrays import Singles

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff"})


def read_image(
    path: Path, declaration: ImageInput, spec: TensorSpec
) -> Singles | npt.NDArray[np.uint8]:
    """Decode an image and bring the image into the form of the model's input.

    Args:
        path: The image.
        declaration: Its preprocessing.
        spec: The input.

    Returns:
        Shape (1, C, H, W) or (1, H, W, C); unchanged uint8 pixels if the input is uint8, else
        float32 after scale, mean and std.

    Raises:
        BuildError: Pillow is not installed, the file is not an image, or has more than 8 bits.
    """
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError as error:
        raise BuildError(
            "reading images needs Pillow, which is not installed",
            remedy="pip install 'edgepack[images]'",
        ) from error
    mode = "L" if declaration.color == "GRAY" else "RGB"
    try:
        with Image.open(path) as file:
            _refuse_deep(path, file.mode)
            image = ImageOps.exif_transpose(file).convert(mode)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise BuildError(
            f"{path.name} cannot be read as an image: {error}",
            found_in=str(path),
            remedy="remove it or replace it",
        ) from error
    pixels = np.asarray(_resize(image, declaration, *image_size(declaration, spec)))
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if declaration.color == "BGR":
        pixels = pixels[:, :, ::-1]
    if spec.dtype != "uint8":
        mean = np.asarray(declaration.mean, np.float32)
        std = np.asarray(declaration.std, np.float32)
        pixels = (pixels.astype(np.float32) * np.float32(declaration.scale) - mean) / std
    if declaration.layout == "NCHW":
        pixels = pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(pixels[None])


def _refuse_deep(path: Path, mode: str) -> None:
    """Reject pictures of 16 bits: Pillow clips values above 255, and the picture would be white."""
    if mode.startswith(("I", "F")):
        raise BuildError(
            f"{path.name} has more than 8 bits a pixel (mode {mode}), and the declared scale is "
            "for values from 0 to 255",
            found_in=str(path),
            remedy="save .npy or .npz files with what the model takes, or pictures of 8 bits",
        )


def _resize(
    image: "Image.Image", declaration: ImageInput, height: int, width: int
) -> "Image.Image":
    from PIL import Image, ImageOps

    bilinear = Image.Resampling.BILINEAR
    if declaration.resize == "letterbox":
        pad = declaration.pad if image.mode == "L" else (declaration.pad,) * 3
        return ImageOps.pad(image, (width, height), bilinear, color=pad)
    if declaration.resize == "crop":
        return ImageOps.fit(image, (width, height), bilinear)
    return image.resize((width, height), bilinear)
