"""Place of a picture in a model's input: what is seen of the picture, and where it lies."""

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.tasks.arrays import Floats, Integers
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

    def to_picture(self, corners: Floats) -> Floats:
        """Return boxes of the input as boxes of the picture, cut off at its edges.

        Args:
            corners: float64 (n, 4), left, top, right and bottom.
        """
        left, top, width, height = self.target
        box = self.box
        steps = np.array([(box[2] - box[0]) / width, (box[3] - box[1]) / height] * 2)
        moved = (corners - np.array([left, top] * 2)) * steps + np.array(box[:2] * 2)
        edges = np.array([self.width, self.height] * 2, np.float64)
        return np.asarray(np.clip(moved, 0.0, edges))

    def spread_map(self, values: npt.NDArray[np.int32], unseen: int) -> npt.NDArray[np.int32]:
        """Return a map of the input in the size of the picture, by the nearest place.

        Args:
            values: int32 (rows, columns), over the whole input.
            unseen: Value of the pixels that are not in the input.
        """
        left, top, width, height = self.target
        rows = _places(self.height, self.box[1::2], (top, height), self.input_height, len(values))
        columns = _places(
            self.width, self.box[::2], (left, width), self.input_width, values.shape[1]
        )
        spread = values[np.maximum(rows, 0)[:, None], np.maximum(columns, 0)]
        spread[rows < 0] = unseen
        spread[:, columns < 0] = unseen
        return spread


def whole_picture(width: int, height: int) -> Frame:
    """Return the place of a picture in an input that takes pictures of any size."""
    return Frame(
        width=width,
        height=height,
        box=(0.0, 0.0, float(width), float(height)),
        target=(0, 0, width, height),
        input_width=width,
        input_height=height,
    )


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
    elif short := described.short_side:
        if described.resize == "stretch":
            across_all = round(short * across / min(across, down))
            down_all = round(short * down / min(across, down))
        elif width <= height:
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


def _places(
    count: int,
    part: tuple[float, ...],
    target: tuple[int, int],
    input_size: int,
    map_size: int,
) -> Integers:
    """Return the place in a map of each row or column of a picture; -1 for an unseen one.

    Args:
        count: Rows or columns of the picture.
        part: Begin and end of the part of the picture that is in the input.
        target: Begin and length of this part in the input.
        input_size: Length of the input.
        map_size: Length of the map.
    """
    first, last = part
    begin, length = target
    inside = (np.arange(count) + 0.5 - first) * (length / (last - first)) + begin
    places = np.floor(inside * (map_size / input_size)).astype(np.int64)
    is_seen = (inside >= 0.0) & (inside < input_size)
    return np.where(is_seen, np.clip(places, 0, map_size - 1), -1)
