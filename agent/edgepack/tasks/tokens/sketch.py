"""Sketch of a written text: length and tokens of the prompt, and surprisal of the first tokens.

A token group is a sixteenth of the vocabulary by a hash of the token's number: a few shares show
another topic, language or template, whatever the tokenizer. The surprisal of a token is minus the
logarithm of the probability that the model gives to the token, without temperature.
"""

from collections.abc import Sequence

import numpy as np

from edgepack.tasks.arrays import Integers, Tensor
from edgepack.tasks.sketch import Sketch

PROMPT, TEXT = "prompt", "text"
"""Features of a text refer to these in place of a tensor."""

GROUPS = 16
SURPRISAL_TOKENS = 8
"""First tokens of a text whose mean surprisal counts: a build writes as many for each prompt."""

_FACTOR, _SHIFT = 2654435761, 28
"""Knuth's multiplicative hash; the highest 4 of 32 bits are the group."""


def groups_of(tokens: Sequence[int] | Integers) -> Integers:
    """Return the token group of each token, 0…15, int64 (n,)."""
    numbers = np.asarray(tokens, np.int64)
    return np.asarray((numbers * _FACTOR & 0xFFFFFFFF) >> _SHIFT)


def name_group(group: int) -> str:
    """Return the name of a token group."""
    return f"token group {group}"


def sketch_prompt(tokens: Sequence[int] | Integers) -> Sketch:
    """Return the length of a prompt, and the share of each token group.

    Args:
        tokens: Of the whole prompt, at least one.
    """
    return Sketch(shares=share_groups(tokens), rest="", numbers={"length": float(len(tokens))})


def share_groups(tokens: Sequence[int] | Integers) -> dict[str, float]:
    """Return the share of each token group by its name.

    Args:
        tokens: Of a text, at least one.
    """
    counts = np.bincount(groups_of(tokens), minlength=GROUPS)
    return {name_group(group): int(count) / len(tokens) for group, count in enumerate(counts)}


def sketch_surprisals(surprisals: Sequence[float]) -> Sketch:
    """Return the mean surprisal of a text.

    Args:
        surprisals: Of its first tokens, nats; more than `SURPRISAL_TOKENS` do not count.
    """
    counted = surprisals[:SURPRISAL_TOKENS]
    return Sketch(numbers={"surprisal": float(np.mean(counted))} if counted else {})


def surprisal_of(logits: Tensor, token: int) -> float:
    """Return the surprisal of a token, nats.

    Args:
        logits: float32 (vocabulary,), with at least one finite value.
        token: A number below the vocabulary's size.
    """
    shifted = logits - logits.max()
    return float(np.log(np.exp(shifted).sum()) - shifted[token])
