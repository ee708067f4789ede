"""Measure of the rows that TopK or NonMaxSuppression selects: rows with similar scores change
places.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.description import SELECTION, TaskOutputs
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.sketch import Sketch, shares_of_classes, sketch_values

NEAR = 0.1
"""Share of an output's root-mean-square by which floats of one row may differ."""

_MOST_ROWS = 1024
"""The first rows, with the highest scores, are compared: each is compared with each."""


def overlap(
    expected: Sequence[npt.NDArray[np.generic]], got: Sequence[npt.NDArray[np.generic]]
) -> float:
    """Return the share of both models' rows that the other has as well, over all samples together.

    A row lies along the last axis; in an output with a single axis longer than 1 each number is a
    row. Rows of integers are the same if equal, rows of floats if no number differs by more than a
    tenth of the output's size.

    Args:
        expected, got: An array per sample; the number of rows may differ between both.

    Returns:
        0 … 1; 1 where nothing is selected by either.
    """
    size = _size(expected)
    width = max((_width(value) for value in (*expected, *got)), default=1)
    found = count = 0
    for want, have in zip(expected, got, strict=True):
        a, b = _rows(want, width), _rows(have, width)
        count += len(a) + len(b)
        near = np.ones((len(a), len(b)), dtype=np.bool_)
        for column in range(width):
            off = np.abs(a[:, column, None] - b[None, :, column])
            near &= off <= (NEAR * size if want.dtype.kind == "f" else 0.0)
        found += int(near.any(axis=1).sum()) + int(near.any(axis=0).sum())
    return found / count if count else 1.0


def _width(value: npt.NDArray[np.generic]) -> int:
    """Return the number of values in a row: 1 if only a single axis is longer than 1."""
    axes = list(value.shape)
    while axes and axes[0] == 1:
        del axes[0]
    return axes[-1] if len(axes) > 1 else 1


def _rows(value: npt.NDArray[np.generic], width: int) -> npt.NDArray[np.float64]:
    """Return float64 (rows, width); no rows if the values do not fit that width."""
    flat = value.astype(np.float64).ravel()
    if not width or flat.size % width:
        return np.zeros((0, width))
    return flat.reshape(-1, width)[:_MOST_ROWS]


def _size(values: Sequence[npt.NDArray[np.generic]]) -> float:
    squares = sum(float(np.sum(value.astype(np.float64) ** 2)) for value in values)
    count = sum(value.size for value in values)
    return float(np.sqrt(squares / count)) if count else 0.0


OVERLAP = Scale(metric="overlap", least=0.99)


def compare_selections(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the rows of an output in any order; see `Compare`."""
    have = [
        other if other.ndim == want.ndim else want[:0] if want.ndim else np.zeros(0)
        for want, other in zip(expected, got, strict=True)
    ]
    measure = Measure(scale=OVERLAP, value=overlap(expected, have), output=output)
    pairs = zip(expected, have, strict=True)
    losses = np.array([1.0 - overlap([want], [other]) for want, other in pairs])
    return Compared(measures=(measure,), losses=losses)


def sketch_selection(part: TaskOutputs, outputs: Outputs) -> Sketch:
    """Return the number of rows; the first class of a row of whole numbers; other values' level."""
    value = outputs[part.outputs[0]]
    rows = {"rows": float(value.shape[0] if value.ndim else 1)}
    if value.dtype.kind == "f":
        found = sketch_values(part, outputs)
        return replace(found, numbers={**found.numbers, **rows})
    is_one_row = value.size == max(value.shape, default=1) > 0
    first = value.ravel()[:1].astype(np.int64)
    return Sketch(shares=shares_of_classes(part, first) if is_one_row else {}, numbers=rows)


TASK = ValueTask(
    SELECTION,
    "what the float model selects, in any order",
    "selected rows",
    compare_selections,
    sketch_selection,
)
