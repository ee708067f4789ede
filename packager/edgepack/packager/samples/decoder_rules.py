"""Rules for a decoder's other inputs from step to step, by names, sizes and values."""

from collections.abc import Callable

import msgspec
import numpy as np

from edgepack.packager.tensors.decoders import Rule
from edgepack.tasks.arrays import Tensor


class FedInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input for the rules; `step` tokens are fed, behind `past` places.

    `is_of_tokens`: its last axis is the tokens', by its name or size. `can_grow`: a longer text may
    make the last axis longer; a source of fixed length stays as long as it is.
    """

    name: str
    value: Tensor
    step: int
    past: int | None
    is_of_tokens: bool
    can_grow: bool = True

    def has(self, *words: str) -> bool:
        return any(word in self.name.lower() for word in words)

    @property
    def last(self) -> int:
        return self.value.shape[-1] if self.value.ndim else 0

    @property
    def is_whole(self) -> bool:
        return self.value.dtype.kind in "iu"

    @property
    def counts_up(self) -> bool:
        return self.is_whole and self.last > 1 and bool((np.diff(self.value, axis=-1) == 1).all())


def _is_mask(it: FedInput) -> bool:
    is_other = not it.can_grow or it.has("encoder", "cross", "enc_")
    if it.value.ndim < 2 or it.past is None or is_other:
        return False
    is_told = it.past > 0 or it.has("mask") or not it.is_of_tokens
    return it.last == it.past + it.step and is_told and not it.counts_up


_RULES: tuple[tuple[Rule, Callable[[FedInput], bool]], ...] = (
    (
        "cache_flag",
        lambda it: it.value.dtype.kind == "b" and it.value.size == 1 and it.has("cache"),
    ),
    ("mask", _is_mask),
    ("total_length", lambda it: it.is_whole and it.value.size == 1 and it.has("total", "seqlens")),
    ("positions", lambda it: it.counts_up or (it.last == 1 < it.value.ndim and it.has("pos"))),
    (
        "past_length",
        lambda it: (
            it.is_whole
            and it.value.size == 1
            and it.has("past", "offset", "pos", "len", "step", "start", "index")
        ),
    ),
    ("as_long", lambda it: it.is_whole and it.is_of_tokens and it.value.ndim > 1),
)
"""The first that fits is taken; an input that none fits stays the same."""


def rule_of(seen: FedInput) -> Rule:
    """Return the rule of an input."""
    return next((rule for rule, fits in _RULES if fits(seen)), "same")
