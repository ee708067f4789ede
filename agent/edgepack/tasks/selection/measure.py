"""Measure of the rows that TopK or NonMaxSuppression selects: rows with similar scores change
places.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.description import SELECTION, TaskOutputs
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.selection.overlap import overlap
from edgepack.tasks.sketch import Sketch, shares_of_classes, sketch_values

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
