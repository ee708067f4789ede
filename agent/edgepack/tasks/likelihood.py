"""Measure how likely the float model finds other probabilities: distributions or single shares."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Tensor
from edgepack.tasks.contract import LOSS, Measure, Scale
from edgepack.tasks.cross_check import is_distribution

LIKELIHOOD = Scale(metric="likelihood", least=0.99)
_LEAST = 1e-4
_MOST_TOLD = 1.0


def measure_likelihood(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats] | None:
    """Measure the log loss that is added where the float model is right: the mean divergence.

    Of single shares it counts as a share of what the float model tells, which is the entropy of its
    mean less its mean entropy: of rare events little, and few nats are a large share of that.
    Samples of one class tell nothing.

    Args:
        output: Its name.
        expected, got: The float model's probabilities and others, an array per sample.

    Returns:
        The measure and the loss of each sample; None where samples are of unlike shapes.
    """
    if any(value.shape != expected[0].shape for value in (*expected, *got)) or not got[0].size:
        return None
    is_one_of = expected[0].shape[-1] > 1 and all(map(is_distribution, expected))
    want, have = (np.stack([bounded(value) for value in values]) for values in (expected, got))
    known = ~np.isnan(np.stack(expected))
    want[~known], have[~known] = 0.5, 0.5
    own = _entropies(want, want, is_one_of)
    divergences = _entropies(want, have, is_one_of) - own
    in_use = known.all(axis=-1) if is_one_of else known
    weights = in_use.reshape(len(want), -1)
    losses = (divergences.reshape(weights.shape) * weights).sum(axis=1)
    losses /= np.maximum(weights.sum(axis=1), 1)
    if not is_one_of:
        count = known.sum(axis=0)
        mean = (want * known).sum(axis=0)[count > 0] / count[count > 0]
        told = float(_entropies(mean, mean, is_one_of).mean() - own[in_use].mean())
        losses /= min(told, _MOST_TOLD) if told > LOSS else _MOST_TOLD
    measure = Measure(scale=LIKELIHOOD, value=float(np.exp(-losses.mean())), output=output)
    return measure, np.asarray(1.0 - np.exp(-losses))


def are_probabilities(values: Sequence[Tensor]) -> bool:
    """Return whether scores never leave 0…1."""
    return all(
        not value.size or (float(np.nanmin(value)) >= 0.0 and float(np.nanmax(value)) <= 1.0)
        for value in values
    )


def bounded(value: Tensor) -> Floats:
    """Return probabilities with a finite logarithm; NaN becomes .5."""
    return np.clip(np.nan_to_num(value.astype(np.float64), nan=0.5), _LEAST, 1.0 - _LEAST)


def _entropies(want: Floats, have: Floats, is_one_of: bool) -> Floats:
    """Return the cross entropy of distributions (last axis), or of each share with its rest."""
    if is_one_of:
        return np.asarray(-(want * np.log(have)).sum(axis=-1))
    return np.asarray(-want * np.log(have) - (1.0 - want) * np.log(1.0 - have))
