"""Measure how likely the float model finds other probabilities: distributions or single shares."""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Floats, Tensor
from edgepack.tasks.contract import LOSS, Measure, Scale
from edgepack.tasks.intervals import mean_low

LIKELIHOOD = Scale(metric="likelihood", least=0.99)
LEAST_SHARE = 1e-4
"""Least probability of a class: below it scores are noise."""
_MOST_TOLD = 1.0
_NOTHING_TOLD = 1e-9
"""Nats: rounding of 64-bit sums."""


def measure_likelihood(
    output: str, expected: Sequence[Tensor], got: Sequence[Tensor]
) -> tuple[Measure, Floats] | None:
    """Measure the log loss that is added where the float model is right: the mean divergence.

    The loss counts as a share of what the float model tells, at most a nat: of rare events little,
    and few nats are a large share of that. Samples of one class tell nothing.

    Args:
        output: Its name.
        expected, got: The float model's probabilities and others, an array per sample.

    Returns:
        The measure and the loss of each sample; None where samples are of unlike shapes.
    """
    found = _divergences(expected, got)
    if found is None:
        return None
    losses, told = found
    losses = losses / (min(told, _MOST_TOLD) if told > LOSS else _MOST_TOLD)
    worst = -mean_low([-float(loss) for loss in losses])
    measure = Measure(
        scale=LIKELIHOOD,
        value=float(np.exp(-losses.mean())),
        low=float(np.exp(-worst)),
        output=output,
    )
    return measure, np.asarray(1.0 - np.exp(-losses))


def lost_skill(expected: Sequence[Tensor], got: Sequence[Tensor]) -> float:
    """Return the added log loss as a share of what the float model tells, however little that is.

    Args:
        expected, got: Probabilities, or rows of scores whose softmax counts, an array per sample.

    Returns:
        1 where a constant would do as well; 0 where samples cannot be compared.
    """
    if not are_probabilities(expected):
        expected, got = ([_softmax(value) for value in values] for values in (expected, got))
    found = _divergences(expected, got)
    if found is None:
        return 0.0
    losses, told = found
    return float(losses.mean()) / max(told, _NOTHING_TOLD)


def _divergences(expected: Sequence[Tensor], got: Sequence[Tensor]) -> tuple[Floats, float] | None:
    """Return the mean divergence of each sample, and how much the float model tells.

    That is the entropy of its mean less its mean entropy, nats: 0 for a constant answer. None where
    samples are of unlike shapes.
    """
    expected, got = ([np.atleast_1d(value) for value in values] for values in (expected, got))
    first = expected[0]
    if any(value.shape != first.shape for value in (*expected, *got)) or not first.size:
        return None
    is_one_of = first.shape[-1] > 1 and all(map(is_distribution, expected))
    want, have = (np.stack([bounded(value) for value in values]) for values in (expected, got))
    known = ~np.isnan(np.stack(expected))
    want[~known], have[~known] = 0.5, 0.5
    if is_one_of:
        want, have = (each / each.sum(axis=-1, keepdims=True) for each in (want, have))
    own = _entropies(want, want, is_one_of)
    divergences = np.maximum(_entropies(want, have, is_one_of) - own, 0.0)
    in_use = known.all(axis=-1) if is_one_of else known
    weights = in_use.reshape(len(want), -1)
    losses = (divergences.reshape(weights.shape) * weights).sum(axis=1)
    losses /= np.maximum(weights.sum(axis=1), 1)
    if not in_use.any():
        return losses, 0.0
    if is_one_of:
        mean = want[in_use].mean(axis=0)
    else:
        count = known.sum(axis=0)
        mean = (want * known).sum(axis=0)[count > 0] / count[count > 0]
    told = float(_entropies(mean, mean, is_one_of).mean() - own[in_use].mean())
    return losses, told


def is_distribution(value: Tensor) -> bool:
    """Return whether rows (last axis) are not negative and sum to 1."""
    value = np.atleast_1d(value)
    rows = value.astype(np.float64).reshape(-1, value.shape[-1])
    rows = rows[~np.isnan(rows).any(axis=-1)]
    return bool((rows >= -1e-6).all()) and bool(np.allclose(rows.sum(axis=-1), 1.0, atol=1e-3))


def _softmax(value: Tensor) -> Floats:
    rows = value.astype(np.float64)
    grown = np.exp(rows - rows.max(axis=-1, keepdims=True, initial=-np.inf))
    return np.asarray(grown / grown.sum(axis=-1, keepdims=True))


def are_probabilities(values: Sequence[Tensor]) -> bool:
    """Return whether scores never leave 0…1; NaN is passed over, NaN alone is no probability."""

    def is_within(value: Tensor) -> bool:
        known = value[~np.isnan(value)]
        return not value.size or (
            bool(known.size) and float(known.min()) >= 0.0 and float(known.max()) <= 1.0
        )

    return all(map(is_within, values))


def bounded(value: Tensor) -> Floats:
    """Return probabilities with a finite logarithm; NaN becomes .5."""
    return np.clip(np.nan_to_num(value.astype(np.float64), nan=0.5), LEAST_SHARE, 1.0 - LEAST_SHARE)


def logits(shares: Tensor) -> Floats:
    """Return the logarithm of the odds of probabilities."""
    known = bounded(shares)
    return np.asarray(np.log(known) - np.log1p(-known))


def _entropies(want: Floats, have: Floats, is_one_of: bool) -> Floats:
    """Return the cross entropy of distributions (last axis), or of each share with its rest."""
    if is_one_of:
        return np.asarray(-(want * np.log(have)).sum(axis=-1))
    return np.asarray(-want * np.log(have) - (1.0 - want) * np.log(1.0 - have))
