"""Measure quantities of models with a state within each series of inferences."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import FEWEST_FOR_SPREAD, Floats, Tensor
from edgepack.tasks.contract import LOSS, Measure, Scale
from edgepack.tasks.intervals import mean_low
from edgepack.tasks.values.strict import MOST_LOST, NARROWEST

IN_SERIES = Scale(metric="explained_within_series", least=0.99)


def measure_series(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor], steps: int
) -> tuple[Measure, Floats] | None:
    """Measure the variance within each series that is kept, mean over series, of the worst column.

    Series of unlike level share no variance: of a small series nothing may be left, while the large
    series make the variance of all.

    Args:
        output: Its name.
        expected, got: The float model's values and others, an array per inference, series by
            series.
        steps: Inferences of a series.

    Returns:
        The measure and the loss of each inference, which is that of its series; None where series
        or rows are too short or too wide to compare.
    """
    shape, width = expected[0].shape, expected[0].size
    if steps < FEWEST_FOR_SPREAD or not 0 < width < NARROWEST or len(expected) % steps:
        return None
    if any(value.shape != shape for value in (*expected, *got)):
        return None
    want, have = (
        np.stack([value.astype(np.float64).ravel() for value in values]).reshape(-1, steps, width)
        for values in (expected, got)
    )
    if not np.isfinite(want).all():
        return None
    spreads = want.var(axis=1)
    # An error that other series may have is at most the whole of a flat one.
    least = np.maximum(LOSS * np.median(spreads, axis=0), 1e-30)
    errors = np.square(np.nan_to_num(have) - want).mean(axis=1)
    losses = np.minimum(errors / np.maximum(spreads, least), MOST_LOST)
    varies = spreads.any(axis=0)
    if not varies.any():
        return None
    worst = int(np.flatnonzero(varies)[losses[:, varies].mean(axis=0).argmax()])
    kept = (1.0 - losses[:, worst]).tolist()
    value = float(np.mean(kept))
    of_column = f"column {worst} of " if width > 1 else ""
    measure = Measure(
        scale=IN_SERIES,
        value=value,
        low=mean_low(kept),
        output=output,
        words=f"{value:.4f} of the variance of {of_column}output '{output}' within "
        f"{len(kept)} series of {steps} inferences",
    )
    return measure, np.repeat(losses[:, worst], steps)
