"""Measure of embedding vectors: variance between samples, since applications compare vectors.

Errors of single rows average out, and an error shared by a whole sample moves the sample among its
neighbours. With sentence embeddings and noise of either kind, recall@1 stayed at 99.6 % with 20 %
of the rows' variance lost to noise of single rows, and fell to 98.4 % with 1 % lost to noise that a
sample's rows share, which is 4.4 % of the neighbourhood.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.embedding.neighbourhood import neighbourhood_kept
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.sketch import Sketch, finite_rows
from edgepack.tasks.values.measure import measure_explained
from edgepack.tasks.values.strict import measure_lengths

NEIGHBOURHOOD = Scale(metric="neighbourhood", least=0.98)
_NARROWEST = 2
_BLOCKS = 8


def measure_neighbourhood(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor], narrowest: int
) -> Measure | None:
    """Return how much of a neighbourhood is kept as a measure; see `neighbourhood_kept`."""
    found = neighbourhood_kept(expected, got, narrowest)
    if found is None:
        return None
    return Measure(scale=NEIGHBOURHOOD, value=found[0], low=found[1], output=output)


def compare_embeddings(output: str, expected: Sequence[Tensor], got: Sequence[Tensor]) -> Compared:
    """Compare the vectors of an output; see `Compare`."""
    explained, losses = measure_explained(output, expected, got)
    measures = [measure_neighbourhood(output, expected, got, _NARROWEST) or explained]
    lengths = measure_lengths(output, expected, got, _NARROWEST)
    if lengths is not None:
        measures.append(lengths[0])
        losses = np.maximum(losses, lengths[1])
    return Compared(measures=tuple(measures), losses=losses)


def sketch_vectors(part: TaskOutputs, outputs: Outputs) -> Sketch:
    """Return the length of vectors, and the mean of each of `_BLOCKS` blocks of their values."""
    rows = finite_rows(outputs[part.outputs[0]])
    if not rows.size:
        return Sketch()
    edges = np.linspace(0, rows.shape[1], min(_BLOCKS, rows.shape[1]) + 1).astype(int)
    numbers = {
        f"level of values {first} to {end - 1}": float(rows[:, first:end].mean())
        for first, end in pairwise(edges.tolist())
    }
    length = float(np.linalg.norm(rows, axis=-1).mean())
    return Sketch(numbers={"length of vectors": length, **numbers})


TASK = ValueTask(
    "embedding",
    "how its vectors differ from each other",
    "vectors",
    compare_embeddings,
    sketch_vectors,
)
