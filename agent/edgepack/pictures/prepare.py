"""Preparation of a picture for a model: the one way, at the build and on a device.

The same picture and description give the same bits with the same Pillow. Another Pillow, or another
JPEG decoder, may give values that differ by a step of 255; golden pictures show that on a device.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgepack.errors import PictureError
from edgepack.pictures.decode import MAX_PIXELS, PictureSource, Pixels, check_pixels, load_image
from edgepack.pictures.frame import Frame, place_picture, whole_picture
from edgepack.tasks.description import ModelDescription
from edgepack.tasks.inputs import PictureInput

if TYPE_CHECKING:
    from PIL import Image


class Prepared(NamedTuple):
    """A picture in the form of an input.

    Attributes:
        tensor: (1, channels, height, width) or (1, height, width, channels), of the input's dtype.
        frame: Place of the picture in the input.
    """

    tensor: npt.NDArray[Any]
    frame: Frame


def prepare_picture(source: PictureSource, described: PictureInput) -> Prepared:
    """Decode a picture and bring the picture into the form of an input.

    Pixels of the input's size and colours need no Pillow.

    Args:
        source: The picture.
        described: The input.

    Raises:
        PictureError: Pillow is not installed, or the picture cannot be read, or is much longer than
            wide.
        TypeError: The source is of another type.
    """
    channels = described.channels
    if isinstance(source, np.ndarray):
        given = check_pixels(source)
        frame = place_picture(described, given.shape[1], given.shape[0])
        if frame.is_unchanged and given.shape[2] == channels:
            return Prepared(to_tensor(given, described), frame)
    image = load_image(source, "L" if channels == 1 else "RGB")
    frame = place_picture(described, image.width, image.height)
    return Prepared(to_tensor(_resize(image, described, frame), described), frame)


def feed_picture(
    source: PictureSource, description: ModelDescription, inputs: Sequence[str]
) -> tuple[dict[str, npt.NDArray[Any]], Frame]:
    """Return the feeds of a model for a picture, and the place of the picture in the input.

    Args:
        source: The picture.
        description: The bundle's.
        inputs: Names of the model's inputs.

    Raises:
        ValueError: The model takes no picture, further inputs, or several pictures at once.
        PictureError: See `prepare_picture`.
    """
    page = description.page
    if page is not None and list(inputs) == [page.name]:
        pixels = load_page(source)
        return {page.name: pixels}, whole_picture(pixels.shape[2], pixels.shape[1])
    described = description.picture
    if described is None or list(inputs) != [described.name]:
        raise ValueError(
            f"the bundle describes no preparation of pictures for {', '.join(inputs)}: give "
            "arrays, or build with [inputs] kind = 'image'"
        )
    if described.batch > 1:
        raise ValueError(
            f"the model takes {described.batch} pictures at once: stack what "
            "edgepack.pictures.prepare.prepare_picture makes of each, and use `run`"
        )
    prepared = prepare_picture(source, described)
    return {described.name: prepared.tensor}, prepared.frame


def load_page(source: PictureSource) -> npt.NDArray[np.uint8]:
    """Decode a picture and return its pixels, uint8 (1, height, width, 3), red first.

    Pixels with three colours need no Pillow.

    Args:
        source: The picture.

    Raises:
        PictureError: See `prepare_picture`.
    """
    if isinstance(source, np.ndarray) and check_pixels(source).shape[2] == 3:
        return np.ascontiguousarray(source[None])
    return np.ascontiguousarray(np.asarray(load_image(source, "RGB"), np.uint8)[None])


def to_tensor(pixels: Pixels, described: PictureInput) -> npt.NDArray[Any]:
    """Return pixels of the input's size as the values of the input, with an axis for the batch.

    Args:
        pixels: uint8 (height, width, channels), red first.
        described: The input.
    """
    values: npt.NDArray[Any] = pixels[:, :, ::-1] if described.color == "BGR" else pixels
    if described.dtype != "uint8":
        mean = np.asarray(described.mean, np.float32)
        std = np.asarray(described.std, np.float32)
        values = (values.astype(np.float32) * np.float32(described.scale) - mean) / std
        with np.errstate(over="ignore"):
            values = values.astype(described.dtype)
    if described.layout == "NCHW":
        values = values.transpose(2, 0, 1)
    return np.ascontiguousarray(values[None])


def _resize(image: "Image.Image", described: PictureInput, frame: Frame) -> Pixels:
    """Return the pixels of the input: resized, padded or cut as the frame says."""
    from PIL import Image

    left, top, width, height = frame.target
    if width * height > MAX_PIXELS:
        raise PictureError(
            f"a picture of {frame.width} x {frame.height} pixels is {width} x {height} pixels "
            f"where its shorter side has {described.short_side}: at most {MAX_PIXELS:,} are made",
            remedy="cut the picture",
        )
    resized = image.resize(
        (width, height), Image.Resampling[described.filter.upper()], box=frame.box
    )
    across, down = frame.input_width, frame.input_height
    if described.resize == "letterbox" and (width, height) != (across, down):
        pad = described.pad if image.mode == "L" else (described.pad,) * 3
        canvas = Image.new(image.mode, (across, down), pad)
        canvas.paste(resized, (left, top))
        resized = canvas
    elif (left, top, width, height) != (0, 0, across, down):
        resized = resized.crop((-left, -top, across - left, down - top))
    pixels = np.asarray(resized)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels
