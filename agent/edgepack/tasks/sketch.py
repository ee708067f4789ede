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
    """Copy some values of an input, evenly: (values,), or (channels, values) of a picture.

    A picture has three axes or more and at most four channels, on the second axis or on the last.
    """
    if value.size <= MOST_COLUMNS:
        return value.ravel().copy()
    sizes = value.shape
    axis = next(
        (
            axis
            for axis in (1, value.ndim - 1)
            if value.ndim > 2 and 1 < sizes[axis] <= MOST_CHANNELS
        ),
        None,
    )
    if axis is None:
        return value.ravel(order="K")[:: _step(value.size, MOST_VALUES)].copy()
    channels = np.moveaxis(value, axis, 0)
    step = _step(channels[0].size, MOST_VALUES // len(channels))
    return np.stack([channel.ravel()[::step] for channel in channels])


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
    """Return level and spread of an input, of a picture the level of each channel.

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
        if wide.ndim > 1:
            for number, channel in enumerate(wide):
                if np.isfinite(channel).any():
                    numbers[f"level of channel {number}"] = float(np.nanmean(channel))
    return Sketch(shares=shares, rest="", numbers=numbers, columns=columns)


def are_names(values: Sequence[Tensor], most: int = 256) -> bool:
    """Return whether whole numbers are too many to be a measure, as token numbers are."""
    if not values or values[0].dtype.kind not in "iu":
        return False
    return len(np.unique(np.concatenate([value.ravel() for value in values]))) > most
