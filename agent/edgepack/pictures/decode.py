"""Decoding of pictures by Pillow, in bounded memory.

Every picture becomes 8 bits a channel, upright, as a person sees it:

- Rotation and mirroring of EXIF are applied.
- Alpha is dropped: the colours below stay.
- CMYK and palettes become RGB by Pillow's rules; colour profiles (ICC) are ignored.
- 16 bits: a grey picture is rejected. Of a PNG in colour Pillow keeps the upper 8 bits.
- Of several frames the first counts.
"""

import io
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgepack.errors import PictureError
from edgepack.extras import install_command
from edgepack.text import printable

if TYPE_CHECKING:
    from PIL import Image

Pixels = npt.NDArray[np.uint8]

PictureSource = str | Path | bytes | bytearray | memoryview | npt.NDArray[Any]
"""A picture: a path, the bytes of a file, or uint8 pixels (height, width) or (height, width, 1, 3
or 4), colours in the order red, green, blue, alpha."""

MAX_PIXELS = 89_478_485
"""Pixels of a picture, at most: Pillow's own limit, 360 MB of colours."""

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "PPM", "TIFF")
"""Pillow's formats that are tried: no format that starts another program."""

_UNREADABLE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RecursionError,
    SyntaxError,
    TypeError,
    UserWarning,
    ValueError,
    struct.error,
    zlib.error,
)
"""What Pillow raises for damaged files. `UserWarning` where a program makes errors of warnings."""

_REPLACE = "give another picture, or write this one again"


def load_image(source: PictureSource, mode: str) -> "Image.Image":
    """Decode a picture.

    Args:
        source: The picture.
        mode: Pillow's mode of the result, `RGB` or `L`.

    Returns:
        The picture, upright.

    Raises:
        PictureError: Pillow is not installed, or the source is not a picture of 8 bits, is damaged
            or has more than `MAX_PIXELS` pixels.
        TypeError: The source is of another type.
    """
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ModuleNotFoundError as error:
        raise PictureError(
            "reading images needs Pillow, which is not installed",
            remedy=install_command("images"),
        ) from error
    title, found_in = "the picture", None
    opened: Any = None
    if isinstance(source, np.ndarray):
        pixels = check_pixels(source)
        return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).convert(mode)
    if isinstance(source, str | Path):
        opened = Path(source)
        title, found_in = opened.name, str(opened)
        if not opened.is_file():
            what = "is not a file" if opened.exists() else "does not exist"
            raise PictureError(f"{title} {what}", found_in=found_in, remedy=_REPLACE)
    elif isinstance(source, bytes | bytearray | memoryview):
        opened = io.BytesIO(source)
    else:
        raise TypeError(
            f"a picture is a path, bytes or a numpy array of uint8, not a {type(source).__name__}"
        )
    damaged = (*_UNREADABLE, Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        with Image.open(opened, formats=FORMATS) as file:
            _check_size(title, file.width, file.height)
            _check_depth(title, file.mode)
            ImageOps.exif_transpose(file, in_place=True)  # loads the pixels
            image: Image.Image = file
            if "transparency" in image.info and mode != image.mode:
                image = image.convert("RGBA")  # else Pillow warns of each such palette
            return image if image.mode == mode else image.convert(mode)
    except PictureError as error:
        error.found_in = found_in
        raise
    except UnidentifiedImageError as error:
        problem = f"{title} cannot be read as an image: no format of {', '.join(FORMATS)}"
        raise PictureError(problem, found_in=found_in, remedy=_REPLACE) from error
    except damaged as error:
        problem = f"{title} cannot be read as an image: {printable(str(error))[:200]}"
        raise PictureError(problem, found_in=found_in, remedy=_REPLACE) from error


def check_pixels(pixels: npt.NDArray[Any]) -> Pixels:
    """Return pixels as (height, width, channels).

    Args:
        pixels: See `PictureSource`.

    Raises:
        PictureError: The array has another type or shape, or more than `MAX_PIXELS` pixels.
    """
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    fits = pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4) and pixels.size > 0
    if pixels.dtype != np.uint8 or not fits:
        raise PictureError(
            f"an array of {pixels.dtype} {list(pixels.shape)} is not a picture",
            remedy="give uint8 pixels [height, width, 3], red first (of OpenCV: "
            "image[:, :, ::-1]); `run` takes arrays that are prepared already",
        )
    _check_size("the picture", pixels.shape[1], pixels.shape[0])
    return pixels


def _check_size(title: str, width: int, height: int) -> None:
    """Reject a picture that would take too much memory, before pixels are decoded."""
    if width * height > MAX_PIXELS:
        raise PictureError(
            f"{title} has {width} x {height} pixels, at most {MAX_PIXELS:,} are decoded",
            remedy="make the picture smaller",
        )


def _check_depth(title: str, mode: str) -> None:
    """Reject pictures of 16 bits: Pillow clips values above 255, and the picture would be white."""
    if mode.startswith(("I", "F")):
        raise PictureError(
            f"{title} has more than 8 bits a pixel (mode {mode}), and the declared scale is for "
            "values from 0 to 255",
            remedy="save .npy or .npz files with what the model takes, or pictures of 8 bits",
        )
