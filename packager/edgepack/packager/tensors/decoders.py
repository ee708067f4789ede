"""Feeding of a decoder step by step: tokens in, the next token's scores out, caches in between."""

from typing import Literal

import msgspec

Rule = Literal["mask", "positions", "past_length", "total_length", "cache_flag", "as_long", "same"]
"""What becomes of an input from one step to the next:

mask: it gets one place more, like its last; positions: the number after the last; past_length,
total_length: it counts on; cache_flag: from the second step on it is true; as_long: its last place;
same: nothing.
"""


class Cache(msgspec.Struct, frozen=True, kw_only=True):
    """An input that receives an output of the previous step.

    Attributes:
        axis: The axis that grows by the tokens of each step; -1 where none does.
        places: Number of places of the input, if fixed by the model: on overflow a place that the
            mask hides is dropped first, then the oldest.
    """

    input: str
    output: str
    axis: int = -1
    places: int | None = None


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs and outputs by which tokens follow each other.

    Attributes:
        tokens: Input of whole numbers, [1, step].
        scores: Output with scores of the next token, [1, step, vocabulary] or [1, vocabulary].
        caches: Caches between steps; none if the whole text is read again.
        rules: Rule for each other input.
        rows: By input of positions, how many the model has a table for.
        end: Token that ends texts, as the model's folder states; None if unknown.
    """

    tokens: str
    scores: str
    caches: tuple[Cache, ...]
    rules: dict[str, Rule]
    rows: dict[str, int] = msgspec.field(default_factory=dict)
    end: int | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that a chain of steps evaluates: the scores, and the caches by their rules."""
        return (self.scores, *(cache.output for cache in self.caches))
