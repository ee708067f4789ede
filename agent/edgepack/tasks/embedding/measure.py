"""Measure of embedding vectors: variance between samples, since applications compare vectors.

Errors of single rows average out, and an error shared by a whole sample moves the sample among its
neighbours. With sentence embeddings and noise of either kind, recall@1 stayed at 99.6 % with 20 %
of the rows' variance lost to noise of single rows, and fell to 98.4 % with 1 % lost to noise that a
sample's rows share, which is 4.4 % of the neighbourhood.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Outputs, Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.intervals import kept_low
from edgepack.tasks.one_output import Compared, ValueTask
from edgepack.tasks.sketch import Sketch, finite_rows
from edgepack.tasks.values.measure import measure_explained
from edgepack.tasks.values.vectors import measure_lengths


def neighbourhood_kept(
    expected: Sequence[Tensor], got: Sequence[Tensor], narrowest: int
) -> tuple[float, float] | None:
    """Return the kept share of the differences between samples, each sample's rows averaged.

    Args:
        expected, got: The float model's and the candidate's values, an array per sample.
        narrowest: Values from which on a row counts as a vector.

    Returns:
        The share and its lower bound; None where there are no vectors, or too few samples.
    """
    shapes = {value.shape for value in (*expected, *got)}
    shape = expected[0].shape
    if len(expected) < FEWEST_FOR_SPREAD or len(shapes) > 1 or not _is_vectors(shape, narrowest):
        return None
    wanted, given = [], []
    for want, have in zip(expected, got, strict=True):
        rows = want.astype(np.float64).reshape(-1, shape[-1])
        in_use = ~np.isnan(rows).any(axis=-1)
        if in_use.any():
            wanted.append(rows[in_use].mean(axis=0))
            given.append(have.astype(np.float64).reshape(rows.shape)[in_use].mean(axis=0))
    vectors = np.stack(wanted)
    error = np.stack(given) - vectors
    if not np.isfinite(error).all():
        return -1.0, -1.0
    lost = ((error - error.mean(axis=0)) ** 2).sum(axis=1)
    whole = ((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1)
    if not whole.sum():
        return None
    return 1.0 - float(lost.sum() / whole.sum()), kept_low(lost.tolist(), whole.tolist())


def _is_vectors(shape: tuple[int, ...], narrowest: int) -> bool:
    """Return True if each sample is a vector, or a row of vectors."""
    return 2 <= len(shape) <= 3 and shape[0] == 1 and shape[-1] >= narrowest


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
