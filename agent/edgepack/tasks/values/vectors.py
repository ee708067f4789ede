"""Measure vectors of one length: unit vectors, normalized embeddings, directions."""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Floats, Tensor
from edgepack.tasks.contract import Measure, Scale
from edgepack.tasks.intervals import mean_low
from edgepack.tasks.values.strict import BY_COLUMN, NARROWEST, by_losses

LENGTH = Scale(metric="unit_length", least=0.999)
"""Of a robot's hand, lengths off by .3 % moved angles by .03 rad, and half of the right poses were
lost; off by .02 % none was."""
NEAREST = Scale(metric="nearest_by_product", least=0.99)

_SAME_LENGTH = 1e-3
"""Share by which the lengths of unit vectors may differ: float32 leaves 1e-6."""

_MOST_COMPARED = 512
"""Vectors that are compared with each other, all samples together."""
_MOST_SHIFTS = 64


def measure_lengths(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor], narrowest: int = NARROWEST
) -> tuple[Measure, Floats] | None:
    """Measure the lengths of vectors that have one length in the float model.

    An angle between narrow vectors, as of a quaternion, follows from their product, which carries
    an error of length whole. Other vectors are compared with each other: there an error of length
    counts by the nearest neighbours that it exchanges.

    Args:
        output: Its name.
        expected, got: The float model's values and others, one array a sample.
        narrowest: Values from which on vectors are compared with each other.

    Returns:
        The measure and the loss of each sample; None where vectors differ in length.
    """
    mean = common_length(expected)
    if not mean:
        return None
    errors = [
        np.linalg.norm(have.astype(np.float64), axis=-1).ravel() / mean - 1.0
        if have.shape == want.shape and np.isfinite(have).all()
        else np.full(max(want.size // want.shape[-1], 1), -1.0)
        for want, have in zip(expected, got, strict=True)
    ]
    apart = np.array([float(np.square(error).mean()) for error in errors])
    off = float(np.sqrt(apart.mean()))
    if expected[0].shape[-1] >= narrowest:
        exchanged = _exchanged_neighbours(expected, mean, off)
        if exchanged is not None:
            losses = np.minimum(apart * exchanged / max(off**2, 1e-300), 1.0)
            words = f"of the nearest neighbours by products of output '{output}'"
            return by_losses(NEAREST, output, losses, words)
    measure = Measure(
        scale=LENGTH,
        value=1.0 - off,
        low=1.0 - math.sqrt(-mean_low([-each for each in apart])),
        output=output,
        words=f"the length of the vectors of output '{output}' within {off:.2%}",
    )
    allowed = (1.0 - LENGTH.least) / (1.0 - BY_COLUMN.least)
    return measure, np.minimum(np.sqrt(apart) / allowed, 1.0)


def common_length(values: Sequence[Tensor]) -> float:
    """Return the length that all vectors (last axis) have; 0 where lengths differ, samples are few,
    or all values of each sample are equal.

    Lengths are compared with the distances between vectors: next to a large constant, as of times,
    all lengths are alike.
    """
    widths = {value.shape[-1] if value.ndim else 1 for value in values}
    if len(values) < FEWEST_FOR_SPREAD or len(widths) > 1 or min(widths) < 2:
        return 0.0
    wide = [value.astype(np.float64).reshape(-1, value.shape[-1]) for value in values]
    if not any(value.size for value in wide):
        return 0.0
    vectors = np.concatenate(wide)
    flat = np.linalg.norm(vectors, axis=-1)
    mean, apart = float(flat.mean()), float(np.sqrt(vectors.var(axis=0).sum()))
    if not mean > 0.0 or np.abs(flat - mean).max() > _SAME_LENGTH * min(mean, apart):
        return 0.0
    return 0.0 if all(np.unique(value).size < 2 for value in values) else mean


def _exchanged_neighbours(expected: Sequence[Tensor], length: float, off: float) -> float | None:
    """Return the share of nearest neighbours that errors of length are expected to exchange.

    A vector's nearest neighbour has the highest product with the vector. Few vectors with a large
    error say that others may have it, too. So all vectors get normal errors of the same root mean
    square, in turn.

    Args:
        expected: The float model's vectors, one array a sample.
        length: Length of the vectors.
        off: Root mean square of the relative errors of length.

    Returns:
        The share; None for samples of unlike shapes, or fewer than three vectors.
    """
    if any(value.shape != expected[0].shape for value in expected):
        return None
    vectors = np.stack([value.reshape(-1, value.shape[-1]) for value in expected])
    step = -(-len(vectors) * vectors.shape[1] // _MOST_COMPARED)
    flat = vectors[:, ::step].reshape(-1, vectors.shape[-1]).astype(np.float64) / length
    count = len(flat)
    if count < 3:
        return None
    products = flat @ flat.T
    np.fill_diagonal(products, -np.inf)
    normal = NormalDist()
    sizes = np.array([normal.inv_cdf((place + 0.5) / count) for place in range(count)])
    stride = next(n for n in range(round(0.618 * count), 0, -1) if math.gcd(n, count) == 1)
    errors = off * sizes[np.arange(count) * stride % count]
    nearest = products.argmax(axis=1)
    shifts = range(0, count, -(-count // _MOST_SHIFTS))
    changed = [(products * (1.0 + np.roll(errors, by))).argmax(axis=1) != nearest for by in shifts]
    return float(np.mean(changed))
