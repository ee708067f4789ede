"""Agreement of a decoder with the float model's choices, and its change over time.

Two rates are measured, with the candidate's own cache in both: after the float model's tokens
(forced), and after the candidate's tokens (free), compared with the float model's choice at the
same place. The lower rate counts. An error that grows through the cache shows in the last quarter
of the steps: if this quarter is significantly worse, its upper bound caps the result.

Word for word two models part sooner or later: with a changed token in a hundred, half of the texts
of 64 tokens differ. The share of equal texts is reported, and not evaluated: after the first other
word, all words differ.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from edgepack.tasks.arrays import Bools, Floats
from edgepack.tasks.contract import Agreement
from edgepack.tasks.intervals import independent, share_bounds, share_low

_GROUPS = 8
"""Positions are told in so many groups."""

_LATE = 0.75
"""From this share of the steps on they are late; as many are early."""


class ChainCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a candidate with the float model after a sample: (steps,) each, up to a text's
    end.

    Attributes:
        forced: Whether the candidate chooses the float model's token after the float model's
            tokens.
        divergence: Kullback-Leibler divergence there, nats.
        free: Whether the float model would have chosen its token after its own tokens.
        same: Whether the candidate's text still equals the float model's, word for word.
    """

    forced: Bools
    divergence: Floats
    free: Bools
    same: Bools


class AtPositions(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements at some steps, the first step counted as 1.

    Attributes:
        first, last: The steps.
        forced, free: Agreement.
        divergence: Mean Kullback-Leibler divergence, nats.
        same: Share of chains with equal text up to the last of these steps.
    """

    first: int
    last: int
    forced: float
    free: float
    divergence: float
    same: float


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A share with its bounds, two-sided, 95 %, for samples like these."""

    value: float
    low: float
    high: float


class TokenAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder against the float model, over all chains.

    Attributes:
        value: The agreement that counts, see above.
        low: Its lower bound for samples like these, one-sided, 95 %.
        count: Tokens, all chains together.
        chains, steps: How many chains, and the steps of the longest.
        forced, free: Agreement after the float model's tokens, and after its own.
        late: Agreement in the last quarter of the steps, the lower of both rates.
        divergence: Mean Kullback-Leibler divergence, nats, after the float model's tokens.
        growth: That of the last quarter of the steps as a multiple of the first quarter's.
        positions: By steps.
    """

    value: float
    low: float
    count: int
    chains: int
    steps: int
    forced: Rate
    free: Rate
    late: Rate
    divergence: float
    growth: float
    positions: tuple[AtPositions, ...]


class ChainAgreement(Agreement, frozen=True, kw_only=True):
    """An agreement that chains of steps gave.

    Attributes:
        positions: By steps.
    """

    positions: tuple[AtPositions, ...]


def measure_tokens(counts: Sequence[ChainCounts]) -> TokenAgreement:
    """Return the agreement over all chains, at least 1."""
    steps = max(len(entry.forced) for entry in counts)
    edge = int(steps * _LATE)
    told = [[of(entry) for entry in counts] for of in _KINDS]
    rates = [_rate(chains) for chains in told]
    late_ones = [[chain[edge:] for chain in chains if chain[edge:].size] for chains in told]
    late = min((_rate(chains) for chains in late_ones if chains), key=lambda rate: rate.high)
    worst = min(range(len(_KINDS)), key=lambda kind: rates[kind].value)
    lost, whole = _lost(told[worst])
    early_kl, late_kl = _divergence(counts, 0, steps - edge), _divergence(counts, edge, steps)
    return TokenAgreement(
        value=min(rates[worst].value, late.high),
        low=min(share_low(rates[worst].value, independent(lost, whole)), late.high),
        count=int(sum(whole)),
        chains=len(counts),
        steps=steps,
        forced=rates[0],
        free=rates[1],
        late=late,
        divergence=_divergence(counts, 0, steps),
        growth=late_kl / max(early_kl, 1e-12),
        positions=tuple(_at(counts, first, last) for first, last in _groups(steps)),
    )


_KINDS: tuple[Callable[[ChainCounts], Bools], ...] = (
    lambda counts: counts.forced,
    lambda counts: counts.free,
)


def _rate(chains: Sequence[Bools]) -> Rate:
    lost, whole = _lost(chains)
    share = 1.0 - sum(lost) / sum(whole)
    low, high = share_bounds(share, independent(lost, whole))
    return Rate(value=share, low=low, high=high)


def _lost(chains: Sequence[Bools]) -> tuple[list[float], list[float]]:
    """Return the differing tokens of each chain, and its number of tokens."""
    return [float(chain.size - chain.sum()) for chain in chains], [float(c.size) for c in chains]


def _divergence(counts: Sequence[ChainCounts], first: int, end: int) -> float:
    return float(np.concatenate([entry.divergence[first:end] for entry in counts]).mean())


def _groups(steps: int) -> list[tuple[int, int]]:
    edges = np.unique(np.linspace(0, steps, min(_GROUPS, steps) + 1).astype(int)).tolist()
    return list(pairwise(edges))


def _at(counts: Sequence[ChainCounts], first: int, end: int) -> AtPositions:
    forced, free = (np.concatenate([of(entry)[first:end] for entry in counts]) for of in _KINDS)
    return AtPositions(
        first=first + 1,
        last=end,
        forced=float(forced.mean()),
        free=float(free.mean()) if free.size else 1.0,
        divergence=_divergence(counts, first, end),
        same=float(np.mean([entry.same[:end][-1] for entry in counts])),
    )
