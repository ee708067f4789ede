"""Meaning of outputs that are as large as an input picture or sound.

Sizes propose, the float model's values confirm. Depth, masks of unlike kinds and generated pictures
look alike: a person decides if values do not.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from edgepack.packager.tensors.sequence import Feeds
from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.picture.measure import NEAR_USUAL
from edgepack.tasks.segmentation.areas import channel_axis, classes_of, is_single

_COARSEST = 0.125
"""Of a map, its places along an axis as a share of the picture's: segmenters give 1, 1/4 or 1/8."""

_PICTURE_RANK = 4
_FEWEST_PLACES = 1024
_SMOOTH = 0.8
"""Share of neighbours of one class: areas are larger than points."""

_CLEAR = 0.8
"""The winner's share in the median place; of a mask, the share of places near 0 or 1."""

LIKE_INPUT = 0.8
"""Correlation with the picture that goes in, from which on what comes out is it, changed a little.
"""

_SHORTEST_SOUND = 4000
"""Values: a quarter of a second at 16 kHz."""

_MOST_TRACKS = 8


class MapFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Findings from values of outputs.

    Attributes:
        tasks: By output, if values decide.
        maps, sounds: Outputs that look like a map or a sound, without further evidence.
    """

    tasks: Mapping[str, str]
    maps: tuple[str, ...] = ()
    sounds: tuple[str, ...] = ()


def may_be_map(shape: Sequence[int | str], inputs: Sequence[Sequence[int | str]]) -> bool:
    """Return True if an output may be a map or a sound, by its known size and the inputs' sizes."""
    takes_picture = any(len(taken) == _PICTURE_RANK for taken in inputs)
    return (len(shape) in (2, 3) and _is_long(shape[-1])) or (takes_picture and len(shape) >= 3)


def recognize_maps(
    names: Sequence[str], feeds: Sequence[Feeds], expected: Sequence[Outputs]
) -> MapFindings:
    """Recognize the meaning of outputs by sizes and values.

    Args:
        names: Outputs of which nothing is known.
        feeds, expected: Samples, and the float model's outputs, a dict per sample.
    """
    tasks: dict[str, str] = {}
    maps, sounds = [], []
    for name in names:
        values = [outputs[name] for outputs in expected]
        if any(not value.size for value in values):
            continue
        if _is_sound(values):
            waves = [_wave(entry) for entry in feeds]
            if all(wave is not None and wave.shape[-1] == values[0].shape[-1] for wave in waves):
                tasks[name] = "sound"
            else:
                sounds.append(name)
        elif pictures := _pictures(feeds, values):
            task = _tell_map(pictures, values)
            if task is not None:
                tasks[name] = task
            elif _channels(values[0]) in (1, 3) and values[0].dtype.kind == "f":
                maps.append(name)
    return MapFindings(tasks=tasks, maps=tuple(maps), sounds=tuple(sounds))


def _is_long(size: int | str) -> bool:
    return isinstance(size, str) or size >= _SHORTEST_SOUND


def _is_sound(values: Sequence[Tensor]) -> bool:
    first = values[0]
    is_row = first.dtype.kind == "f" and 2 <= first.ndim <= 3 and _is_long(first.shape[-1])
    if not is_row or first.size // first.shape[-1] > _MOST_TRACKS:
        return False
    return -NEAR_USUAL <= float(first.min()) < 0.0 < float(first.max()) <= NEAR_USUAL


def _wave(feeds: Feeds) -> Tensor | None:
    """Return the sound among the inputs of a sample."""
    rows = [value for value in feeds.values() if value.ndim in (2, 3) and _is_sound([value])]
    return rows[0] if len(rows) == 1 else None


def _pictures(feeds: Sequence[Feeds], values: Sequence[Tensor]) -> list[Tensor]:
    """Return the picture of each map; none if an output is not a map of a picture."""
    found = []
    for entry, value in zip(feeds, values, strict=True):
        pictures = [picture for picture in entry.values() if _channels(picture) in (1, 3, 4)]
        if len(pictures) != 1 or value.ndim not in (3, 4) or value.shape[0] != 1:
            return []
        (height, width), (rows, columns) = _places(pictures[0]), _places(value)
        is_like = abs(rows * width - columns * height) <= max(height, width)
        if not is_like or rows < _COARSEST * height or rows * columns < _FEWEST_PLACES:
            return []
        found.append(pictures[0])
    return found


def _channels(value: Tensor) -> int:
    """Return the channels of a picture or map; 0 for other arrays."""
    axis = channel_axis(value)
    if axis is None:
        return 1 if value.ndim == 3 and min(value.shape[1:]) > 4 else 0
    return int(value.shape[axis])


def _places(value: Tensor) -> tuple[int, int]:
    height, width = value.shape[2:] if channel_axis(value) == 1 else value.shape[1:3]
    return height, width


def _tell_map(pictures: Sequence[Tensor], values: Sequence[Tensor]) -> str | None:
    is_float = values[0].dtype.kind == "f"
    if is_float and _are_made_pictures(pictures, values):
        return "picture"
    if is_float and is_single(values[0]):
        return "segmentation" if _are_masks(values) else None
    if not is_float and _channels(values[0]) != 1:
        return None
    if is_float and not _are_clear(values):
        return None
    classes = [classes_of(value).reshape(_places(value)) for value in values]
    same = float(np.mean([(row[:, 1:] == row[:, :-1]).mean() for row in classes]))
    several = len(np.unique(np.concatenate([np.unique(row) for row in classes]))) > 1
    return "segmentation" if several and same >= _SMOOTH else None


def _are_made_pictures(pictures: Sequence[Tensor], values: Sequence[Tensor]) -> bool:
    """Return True for values larger than the inputs with as many channels, or nearly equal to the
    input.
    """
    if _channels(pictures[0]) != _channels(values[0]):
        return False
    if _places(values[0])[0] > _places(pictures[0])[0]:
        return True
    if values[0].size != pictures[0].size:
        return False
    alike = [_correlation(*pair) for pair in zip(pictures, values, strict=True)]
    return float(np.median(alike)) >= LIKE_INPUT


def _correlation(first: Tensor, second: Tensor) -> float:
    a, b = (_by_places(value) - value.mean(dtype=np.float64) for value in (first, second))
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / size if size else 0.0


def _by_places(value: Tensor) -> Floats:
    axis = channel_axis(value)
    wide = value.astype(np.float64)
    return (wide if axis is None else np.moveaxis(wide, axis, -1)).reshape(-1)


def _are_masks(values: Sequence[Tensor]) -> bool:
    """Return True for probabilities that are near 0 or 1 at most places, and find something."""
    places = np.concatenate([value.ravel() for value in values])
    if float(places.min()) < 0.0 or float(places.max()) > 1.0:
        return False
    near, found = np.maximum(places, 1.0 - places) >= _CLEAR, places >= _CLEAR
    return float(near.mean()) >= _CLEAR and bool(found.any()) and not found.all()


def _are_clear(values: Sequence[Tensor]) -> bool:
    """Return True if a class stands out at most places: in a softmax, or in signed scores."""
    axis = channel_axis(values[0])
    if axis is None:
        return False
    shares = []
    for value in values:
        rows = np.moveaxis(value, axis, -1).reshape(-1, value.shape[axis]).astype(np.float64)
        is_shared = bool((rows >= 0.0).all() and np.allclose(rows.sum(-1), 1.0, atol=1e-2))
        if not is_shared and (rows >= 0.0).all():
            return False
        scores = np.log(np.maximum(rows, 1e-30)) if is_shared else rows
        shares.append(1.0 / np.exp(scores - scores.max(-1, keepdims=True)).sum(-1))
    return float(np.median(np.concatenate(shares))) >= _CLEAR
