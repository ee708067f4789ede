"""Sketch an inference: features that matter to a task, by which drift is measured.

A build sketches the float model's outputs on its samples. A device sketches its own outputs with
the same function of the same task, so that both count alike (`edgepack.bundle.drift`).
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from edgepack.tasks.arrays import Floats, Integers, Outputs, Tensor
from edgepack.tasks.description import TaskOutputs

MOST_COLUMNS = 16
"""Values of a row up to which each value is a quantity of its own."""

MOST_CHANNELS = 4
MOST_VALUES = 4096
"""Values of one input, or places of one map, that are looked at in one inference, about."""

_LEAST_SIDE = 8
"""Rows and columns of a picture, at least."""

_PAIRS = 16
"""Pairs of adjacent rows, and of adjacent columns, that are looked at in a picture."""

_ROWS, _COLUMNS = ("top", "middle", "bottom"), ("left", "middle", "right")

OTHER = "other classes"


class Sketch(msgspec.Struct, frozen=True, kw_only=True):
    """Features of an inference.

    Attributes:
        shares: Share or number of each class by the class's name; a missing class counts 0.
        share_words: Words around a class's name.
        rest: Name of all classes that the build did not list; "" if classes are always listed.
        numbers: Numbers by name, for example `length`.
        columns: Quantities by their words; their spread from inference to inference counts, too.
        confidence: Probability of the answer, 0…1; None if unknown.
    """

    shares: dict[str, float] = {}
    share_words: str = "share of {}"
    rest: str = OTHER
    numbers: dict[str, float] = {}
    columns: dict[str, float] = {}
    confidence: float | None = None


def sketch_values(part: TaskOutputs, outputs: Outputs) -> Sketch:
    """Return level and spread of each output; of a short row each value by itself."""
    numbers: dict[str, float] = {}
    columns: dict[str, float] = {}
    for name in part.outputs:
        of = f" of '{name}'" if len(part.outputs) > 1 else ""
        values = finite_values(outputs[name])
        if 0 < outputs[name].size <= MOST_COLUMNS:
            flat = outputs[name].astype(np.float64).ravel()
            for place, value in enumerate(flat):
                if math.isfinite(value):
                    columns[f"{part.column(place, flat.size)}{of}"] = float(value)
        elif values.size:
            numbers[f"level{of}"] = float(values.mean())
            numbers[f"spread{of}"] = float(values.std())
    return Sketch(numbers=numbers, columns=columns)


def sketch_decisions(part: TaskOutputs, outputs: Outputs) -> Sketch:
    """Return the share of each class among the rows of an output, and the mean confidence.

    Whole numbers are classes. Floats without a row of classes are sketched by their values.
    """
    value = outputs[part.outputs[0]]
    if value.dtype.kind != "f":
        return Sketch(shares=shares_of_classes(part, value.astype(np.int64).ravel()))
    if not value.ndim or value.shape[-1] < 2:
        return sketch_values(part, outputs)
    rows = finite_rows(value)
    if not rows.size:
        return Sketch()
    return Sketch(
        shares=shares_of_classes(part, rows.argmax(axis=-1)),
        confidence=float(as_probabilities(rows).max(axis=-1).mean()),
    )


def shares_of_classes(part: TaskOutputs, classes: Integers) -> dict[str, float]:
    """Return the share of each class, by name.

    Args:
        part: Names the classes.
        classes: int64 (n,).
    """
    found, counts = np.unique(classes, return_counts=True)
    pairs = zip(found.tolist(), counts.tolist(), strict=True)
    return {part.class_name(number): count / classes.size for number, count in pairs}


def as_probabilities(rows: Tensor) -> Floats:
    """Return rows that are distributions unchanged, and the softmax of other rows.

    Args:
        rows: (n, classes), finite.
    """
    wide = rows.astype(np.float64)
    if (wide >= 0.0).all() and np.allclose(wide.sum(axis=-1), 1.0, atol=1e-2):
        return np.asarray(wide)
    grown = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))


def finite_rows(value: Tensor) -> Floats:
    """Return the rows (last axis) of a tensor that are finite, as float64 (n, columns)."""
    width = value.shape[-1] if value.ndim else 1
    rows = value.astype(np.float64).reshape(-1 if width else 0, width)
    return np.asarray(rows[np.isfinite(rows).all(axis=-1)])


def finite_values(value: Tensor) -> Floats:
    """Return the finite values of a tensor as float64 (n,)."""
    flat = value.astype(np.float64).ravel()
    return np.asarray(flat[np.isfinite(flat)])


def thin_input(value: Tensor) -> Tensor:
    """Copy some values of an input, evenly.

    A picture has one to four channels, on the second axis or on the last, and at least 8 rows and
    columns; the first picture of a batch counts.

    Returns:
        (channels, rows, columns) of a picture: pairs of adjacent rows and of adjacent columns;
        (channels, values) of other inputs with channels; (values,) of all others.
    """
    if value.size <= MOST_COLUMNS:
        return value.ravel().copy()
    sizes = value.shape
    axes = [
        axis for axis in (1, value.ndim - 1) if value.ndim > 2 and 1 <= sizes[axis] <= MOST_CHANNELS
    ]
    for axis in axes:
        planes = np.moveaxis(value, axis, 0)
        planes = planes[:, 0] if planes.ndim == 4 else planes
        if planes.ndim == 3 and min(planes.shape[1:]) >= _LEAST_SIDE:
            rows, columns = (_pairs(size) for size in planes.shape[1:])
            return planes[:, rows[:, None], columns]
    colours = next((axis for axis in axes if sizes[axis] > 1), None)
    if colours is None:
        return value.ravel(order="K")[:: _step(value.size, MOST_VALUES)].copy()
    channels = np.moveaxis(value, colours, 0)
    step = _step(channels[0].size, MOST_VALUES // len(channels))
    return np.stack([channel.ravel()[::step] for channel in channels])


def _pairs(size: int) -> Integers:
    """Return evenly spaced places of an axis, each with the place behind it."""
    first = np.linspace(0, size - 2, min(_PAIRS, size // 2)).astype(np.int64)
    return np.stack([first, first + 1], axis=1).ravel()


def thin_places(places: Integers) -> Integers:
    """Return some of many places, evenly."""
    return places.ravel()[:: _step(places.size, MOST_VALUES)]


def _step(size: int, most: int) -> int:
    """Return a step that leaves at most so many values, without a divisor in common with the size.

    So the values never come from a single row, column or channel only.
    """
    step = max(1, math.ceil(size / most))
    while math.gcd(step, size) > 1:
        step += 1
    return step


def sketch_input(value: Tensor) -> Sketch:
    """Return level and spread of an input; of a picture also channels, coarse places and edges.

    The difference of neighbouring channels shows swapped channels, the level of each ninth of the
    picture a moved camera, and the difference of adjacent pixels noise and blur.

    Args:
        value: Result of `thin_input`.
    """
    wide = value.astype(np.float64)
    known = np.isfinite(wide)
    shares = {"NaN or infinity": 1.0 - float(known.mean()) if wide.size else 0.0}
    numbers: dict[str, float] = {}
    columns: dict[str, float] = {}
    if wide.ndim == 1 and wide.size <= MOST_COLUMNS:
        names = ["value"] if wide.size == 1 else [f"column {n}" for n in range(wide.size)]
        columns = {
            name: float(one) for name, one in zip(names, wide, strict=True) if math.isfinite(one)
        }
    elif known.any():
        numbers = {"level": float(wide[known].mean()), "spread": float(wide[known].std())}
        if wide.ndim > 1 and known.all():
            levels = wide.reshape(len(wide), -1).mean(axis=1)
            names = [f"level of channel {number}" for number in range(len(levels))]
            numbers.update(zip(names, levels.tolist(), strict=True))
            for number in range(len(levels) - 1):
                words = f"channel {number} less channel {number + 1}"
                numbers[words] = float(levels[number] - levels[number + 1])
        if wide.ndim == 3 and known.all():
            numbers.update(_sketch_places(wide.mean(axis=0)))
    return Sketch(shares=shares, rest="", numbers=numbers, columns=columns)


def _sketch_places(picture: Floats) -> dict[str, float]:
    """Return the level of each ninth of a picture, and the mean difference of adjacent pixels.

    Args:
        picture: (rows, columns); see `_pairs`.
    """
    found = {
        f"level at {vertical} {horizontal}".replace("middle middle", "the middle"): float(
            part.mean()
        )
        for vertical, band in zip(_ROWS, np.array_split(picture, 3), strict=True)
        for horizontal, part in zip(_COLUMNS, np.array_split(band, 3, axis=1), strict=True)
    }
    across = np.abs(picture[:, 0::2] - picture[:, 1::2]).mean()
    down = np.abs(picture[0::2] - picture[1::2]).mean()
    return found | {"edges": float(across + down) / 2.0}


def are_names(values: Sequence[Tensor], most: int = 256) -> bool:
    """Return whether whole numbers are too many to be a measure, as token numbers are."""
    if not values or values[0].dtype.kind not in "iu":
        return False
    return len(np.unique(np.concatenate([value.ravel() for value in values]))) > most
