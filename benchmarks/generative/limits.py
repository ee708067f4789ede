"""Budgets of texts against right answers: roundings within the limits, and what these lose."""

from collections.abc import Iterator, Sequence

import msgspec

RATIO, DIVERGENCE = 1.01, 0.005
"""The limits of a perplexity and of a divergence in nats that a build has by default."""
MULTIPLES = (0.5, 1.0, 2.0, 4.0)
MOST_LOSS = 0.01


class Rounding(msgspec.Struct, frozen=True):
    """A rounding of weights: measures of the answers' tokens, and the share of right answers."""

    bits: int
    block: int
    share: float
    ratio: float
    divergence: float
    agreement: float
    right: float


class Rounded(msgspec.Struct, frozen=True):
    """A model with right answers, and its roundings."""

    name: str
    right: float
    roundings: tuple[Rounding, ...]


def limit_rows(models: Sequence[Rounded]) -> Iterator[list[str]]:
    """Yield a row of the table for each model and multiple of the limits."""
    for model in models:
        for times in MULTIPLES:
            within = [one for one in model.roundings if is_within(one, times)]
            losses = [lost_share(model, one) for one in within]
            beyond = [one for one in model.roundings if one not in within]
            yield [
                f"{model.name} (right: {model.right:.3f})",
                f"x {times:g}",
                f"{len(within)} of {len(model.roundings)}",
                f"{max(losses, default=0.0):.2%}",
                str(sum(loss > MOST_LOSS for loss in losses)),
                str(sum(lost_share(model, one) <= MOST_LOSS for one in beyond)),
            ]


def is_within(rounding: Rounding, times: float) -> bool:
    """Return whether a rounding is within a multiple of both limits."""
    return rounding.ratio - 1 <= times * (RATIO - 1) and rounding.divergence <= times * DIVERGENCE


def lost_share(model: Rounded, rounding: Rounding) -> float:
    """Return the share of right answers that a rounding loses."""
    return 1 - rounding.right / model.right
