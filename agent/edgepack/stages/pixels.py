"""Pixels: resizing without smoothing, and boxes cut out of a picture, as OpenCV does.

Detectors and recognizers of text are trained on what OpenCV makes, and read less of other pixels.
"""

import numpy as np
import numpy.typing as npt

from edgepack.tasks.arrays import Floats

Pixels = npt.NDArray[np.uint8]

_SHARPNESS = -0.75
"""Of the cubic kernel (Keys 1981, a); OpenCV's `interpolateCubic`."""

_ONE = 2048
"""Shares of pixels are whole numbers of this: OpenCV's `INTER_RESIZE_COEF_SCALE`."""

_BAND = 256
"""Rows that are cut at once, so that memory is bounded."""

_UPRIGHT = 1.5
"""Height over width from which on PaddleOCR turns a cut box by a quarter."""


def resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """Return pixels of another size, linear between the nearest four.

    Args:
        pixels: uint8 (height, width, channels).
        height, width: Size of the result, at least 1.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    upper, lower, down = _between(pixels.shape[0], height)
    left, right, across = _between(pixels.shape[1], width)
    used = np.unique((upper, lower))  # a picture of one column has millions of rows
    upper, lower = np.searchsorted(used, (upper, lower))
    pixels = pixels.take(used, axis=0)
    rows = pixels.take(left, axis=1) * (_ONE - across)[:, None]
    rows += pixels.take(right, axis=1) * across[:, None]
    rows >>= 4
    whole = (rows.take(upper, axis=0) * (_ONE - down)[:, None, None]) >> 16
    whole += (rows.take(lower, axis=0) * down[:, None, None]) >> 16
    whole += 2
    whole >>= 2
    result: Pixels = whole.astype(np.uint8)
    return result


def _between(
    size: int, wanted: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return for each place of an axis the two nearest old places, and the share of the second."""
    places = (np.arange(wanted) + 0.5) * (size / wanted) - 0.5
    first = np.floor(places).astype(np.int64)
    share = np.where((first < 0) | (first >= size - 1), 0.0, places - first)
    low = np.clip(first, 0, size - 1)
    return low, np.minimum(low + 1, size - 1), np.rint(share * _ONE).astype(np.int32)


def cut_out(pixels: Pixels, corners: Floats) -> Pixels:
    """Return the pixels in a box, upright.

    Args:
        pixels: uint8 (height, width, channels).
        corners: (4, 2), across and down, clockwise from the upper left corner.
    """
    width = max(1, int(max(_length(corners[0], corners[1]), _length(corners[2], corners[3]))))
    height = max(1, int(max(_length(corners[0], corners[3]), _length(corners[1], corners[2]))))
    to_picture = _projection(
        np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64), corners
    )
    cut = np.concatenate(
        [
            _sample(pixels, to_picture, range(top, min(top + _BAND, height)), width)
            for top in range(0, height, _BAND)
        ]
    )
    return np.ascontiguousarray(np.rot90(cut)) if height >= _UPRIGHT * width else cut


def _length(one: Floats, other: Floats) -> float:
    return float(np.linalg.norm(one - other))


def _projection(source: Floats, target: Floats) -> Floats:
    """Return the matrix (3, 3) of the projection that brings four points to four others."""
    rows = []
    for (x, y), (u, v) in zip(source, target.astype(np.float64), strict=True):
        rows.append([x, y, 1, 0, 0, 0, -u * x, -u * y])
        rows.append([0, 0, 0, x, y, 1, -v * x, -v * y])
    found = np.linalg.lstsq(np.array(rows), target.astype(np.float64).ravel(), rcond=None)[0]
    return np.append(found, 1.0).reshape(3, 3)


def _sample(pixels: Pixels, projection: Floats, rows: range, width: int) -> Pixels:
    """Return rows of a box, cubic between the nearest 16 pixels; edges are repeated."""
    across, down = np.meshgrid(np.arange(width, dtype=np.float64), np.array(rows, np.float64))
    depth = projection[2, 0] * across + projection[2, 1] * down + projection[2, 2]
    x = (projection[0, 0] * across + projection[0, 1] * down + projection[0, 2]) / depth
    y = (projection[1, 0] * across + projection[1, 1] * down + projection[1, 2]) / depth

    left, top = np.floor(x), np.floor(y)
    weights_x, weights_y = _cubic(x - left), _cubic(y - top)
    columns, lines = left.astype(np.int64), top.astype(np.int64)
    found = np.zeros((*x.shape, pixels.shape[2]), np.float32)
    for number, weight_y in enumerate(weights_y):
        line = np.clip(lines + number - 1, 0, pixels.shape[0] - 1)
        for place, weight_x in enumerate(weights_x):
            column = np.clip(columns + place - 1, 0, pixels.shape[1] - 1)
            found += (weight_y * weight_x)[:, :, None] * pixels[line, column]
    return np.clip(np.rint(found), 0, 255).astype(np.uint8)


def _cubic(share: Floats) -> tuple[npt.NDArray[np.float32], ...]:
    """Return the weights of the four nearest pixels of an axis."""
    near, a = share, _SHARPNESS
    first = ((a * (near + 1) - 5 * a) * (near + 1) + 8 * a) * (near + 1) - 4 * a
    second = ((a + 2) * near - (a + 3)) * near * near + 1
    third = ((a + 2) * (1 - near) - (a + 3)) * (1 - near) * (1 - near) + 1
    weights = (first, second, third, 1 - first - second - third)
    return tuple(weight.astype(np.float32) for weight in weights)
