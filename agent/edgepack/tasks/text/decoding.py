"""Reader of text from the classes of steps, and detection of outputs that are text.

A model that was trained with CTC gives a blank at most steps, the first class or the last, and each
character for a step or two. Frames with individual labels (phonemes, sounds) last longer, and rows
of a detector have no blank.
"""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from msgspec.structs import replace

from edgepack.tasks.arrays import Floats, Outputs, Tensor
from edgepack.tasks.sketch import as_probabilities
from edgepack.tasks.text.head import TextHead

Text = tuple[int, ...]
"""Classes, one a character."""

_FEWEST_BLANKS = 0.15
"""Of all steps. Narrow letters of PP-OCRv3 leave blanks at .2 of them, other lines and speech more.
"""

_LONGEST_CHARACTER = 3.0
"""Steps of a character on average; lines of print had 1.1."""

_CLEAR = 0.9
"""Share of the best class in the median step."""


def read_text(head: TextHead, outputs: Outputs) -> Text:
    """Return characters, or the best class of each step, repetitions merged and blanks dropped."""
    value = outputs[head.output]
    winners = _winners(value)
    if head.blank is None and value.dtype.kind != "f":  # characters
        return _without(winners, head.empty + head.spaces * head.ignores_spaces)
    return merge(head, winners)


def merge(head: TextHead, kinds: Sequence[int]) -> Text:
    """Merge the classes of all steps into a text: repetitions merged, blanks dropped.

    Spaces at the ends are removed: a model outputs spaces for the padding of lines, which nobody
    reads. All spaces are removed if the head ignores them.
    """
    merged = [kind for kind, _ in groupby(kinds) if kind != head.blank]
    if head.ignores_spaces:
        return _without(merged, head.spaces)
    places = [place for place, kind in enumerate(merged) if kind not in head.spaces]
    return tuple(merged[places[0] : places[-1] + 1]) if places else ()


def _without(kinds: Sequence[int], ignored: Sequence[int]) -> Text:
    return tuple(kind for kind in kinds if kind not in ignored)


def settle(head: TextHead, expected: Sequence[Outputs]) -> TextHead | None:
    """Return the head with its blank, by the float model's values; None if the values are not text.

    Args:
        head: Facts from graph, metadata or a person.
        expected: The float model's outputs, a dict per sample.
    """
    values = [outputs[head.output] for outputs in expected]
    if values[0].dtype.kind != "f":
        return head if head.source == "declared" else None
    if any(value.ndim != 3 or 1 not in value.shape[:2] for value in values):
        return None
    if head.blank is not None:
        return head if all(0 <= head.blank < value.shape[-1] for value in values) else None
    steps = [_winners(value) for value in values]
    last = values[0].shape[-1] - 1
    counts = {blank: sum(row.count(blank) for row in steps) for blank in (0, last)}
    blank = max(counts, key=counts.__getitem__)
    has_blanks = counts[blank] >= _FEWEST_BLANKS * max(sum(map(len, steps)), 1)
    runs = [len(list(run)) for row in steps for kind, run in groupby(row) if kind != blank]
    is_short = bool(runs) and float(np.mean(runs)) <= _LONGEST_CHARACTER
    settled = replace(head, blank=blank)
    are_unlike = len({read_text(settled, outputs) for outputs in expected}) > 1
    if has_blanks and is_short and are_unlike and _clearness(values) >= _CLEAR:
        return settled
    return None


def may_be_text(head: TextHead, expected: Sequence[Outputs]) -> bool:
    """Return True if a class stands out at each step, and not always the same class."""
    values = [outputs[head.output] for outputs in expected]
    if (
        any(value.ndim != 3 or value.dtype.kind != "f" for value in values)
        or _clearness(values) < _CLEAR
    ):
        return False
    return len({kind for value in values for kind in _winners(value)}) > 1


def shares_of(value: Tensor) -> Floats:
    """Return (steps, classes): given probabilities, or a softmax of scores; without padding."""
    return as_probabilities(_rows(value))


def _winners(value: Tensor) -> list[int]:
    """Return the best class of each step, without padding (NaN)."""
    if value.dtype.kind != "f":
        chosen: list[int] = value.reshape(-1).tolist()
        return chosen
    winners: list[int] = _rows(value).argmax(axis=-1).tolist()
    return winners


def _rows(value: Tensor) -> Tensor:
    """Return (steps, classes), without padding (NaN)."""
    rows = value.reshape(-1, value.shape[-1])
    return np.asarray(rows[~np.isnan(rows).any(axis=-1)])


def _clearness(values: Sequence[Tensor]) -> float:
    """Return the best class's share in the median step."""
    shares = [shares_of(value).max(axis=-1) for value in values]
    return float(np.median(np.concatenate(shares)))
