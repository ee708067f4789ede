"""Place of a picture in a model's input: what is seen of the picture, and where it lies."""

import msgspec

from edgepack.tasks.inputs import PictureInput

Box = tuple[float, float, float, float]


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a picture in an input; all lengths are pixels.

    The part `box` of the picture is brought to the size and place of `target`; what lies outside of
    the input is cut off, and the rest of the input is padding.

    Attributes:
        width, height: Size of the picture, upright.
        box: Left, top, right and bottom of the part of the picture.
        target: Left, top, width and height of this part in the input; left and top are negative
            where the middle is cut out.
        input_width, input_height: Size of the input.
    """

    width: int
    height: int
    box: Box
    target: tuple[int, int, int, int]
    input_width: int
    input_height: int

    @property
    def is_unchanged(self) -> bool:
        """True if the picture has the size of the input and nothing is moved."""
        size = (self.input_width, self.input_height)
        return (self.width, self.height) == size and self.target == (0, 0, *size)


def place_picture(described: PictureInput, width: int, height: int) -> Frame:
    """Return the place of a picture in an input.

    The numbers are those of Pillow's `ImageOps.pad` and `ImageOps.fit`, and of torchvision's
    `Resize(n)` with `CenterCrop`.

    Args:
        described: The input.
        width, height: Size of the picture, pixels, at least 1.
    """
    across, down = described.width, described.height
    box: Box = (0.0, 0.0, float(width), float(height))
    target = (0, 0, across, down)
    if described.resize == "crop":
        box = _middle(width, height, across / down)
    elif described.resize == "letterbox":
        target = _padded(width, height, across, down)
    elif described.resize == "short_side":
        short = described.short_side
        if width <= height:
            across_all, down_all = short, int(short * height / width)
        else:
            across_all, down_all = int(short * width / height), short
        target = (-((across_all - across) // 2), -((down_all - down) // 2), across_all, down_all)
    return Frame(
        width=width, height=height, box=box, target=target, input_width=across, input_height=down
    )


def _middle(width: int, height: int, ratio: float) -> Box:
    """Return the largest part of a picture with a ratio of width to height, in the middle."""
    across, down = float(width), float(height)
    own = width / height
    if own > ratio:
        across = ratio * height
    elif own < ratio:
        down = width / ratio
    left, top = (width - across) * 0.5, (height - down) * 0.5
    return (left, top, left + across, top + down)


def _padded(width: int, height: int, across: int, down: int) -> tuple[int, int, int, int]:
    """Return the place of a picture that keeps its aspect, with padding on two sides."""
    own, ratio = width / height, across / down
    inner, tall = across, down
    if own > ratio:
        tall = max(1, round(height / width * across))
    elif own < ratio:
        inner = max(1, round(width / height * down))
    if inner != across:
        return (round((across - inner) * 0.5), 0, inner, tall)
    return (0, round((down - tall) * 0.5), inner, tall)
