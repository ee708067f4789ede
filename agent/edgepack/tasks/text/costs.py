"""Expected cost of a changed text, without ground truth.

If the float model hesitates between two readings, either reading is about as often right, so a
variant with the other reading is as good. If the float model was sure, the other reading is wrong.
CTC gives the probability of any text: each step takes a class by its probability, independently of
all other steps (Graves et al., Connectionist Temporal Classification, 2006, 3.1). So possible true
texts are drawn, and the cost is the number of edits that the variant's text needs beyond the float
model's text. For a text as a whole the cost is the loss of probability.

That is so as long as the float model hesitates with reason. The float model may as well be always
right at 55 %, and a variant that always reads the alternative is worse then. Noise replaces
characters symmetrically, so a significant net change counts in full, whatever its expected cost.
"""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from edgepack.tasks.arrays import Floats, Outputs
from edgepack.tasks.classification.decisions import CLEAR
from edgepack.tasks.text.decoding import Text, merge, shares_of
from edgepack.tasks.text.edits import edit_distance
from edgepack.tasks.text.head import TextHead

_DRAWN = 128
"""Texts for each one that changed: an edit's cost is off by .06 at most (one standard error)."""

_Z = 1.96
"""Standard normal quantile of 97.5 %."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Expected cost of another text, beyond the float model's own cost.

    Attributes:
        edits: Wrong characters: from 0 to the edit distance of both texts, and the edit distance
            without probabilities.
        whole: Loss of a text that is right as a whole, 0…1; 0 without probabilities.
    """

    edits: float
    whole: float = 0.0


def expected_cost(head: TextHead, outputs: Outputs, expected: Text, got: Text) -> Cost:
    """Return the expected cost of a candidate's other text.

    Args:
        head: Output with the text, settled.
        outputs: The float model's.
        expected: Text of the float model.
        got: Text of a candidate.
    """
    edits = float(edit_distance(expected, got))
    value = outputs[head.output]
    if not edits or value.dtype.kind != "f":
        return Cost(edits=edits)
    shares = shares_of(value)
    if not np.isfinite(shares).all() or np.median(shares.max(axis=-1)) < CLEAR:
        return Cost(edits=edits)
    more = sum(
        count * (edit_distance(got, text) - edit_distance(expected, text))
        for text, count in _draw(head, shares).items()
    )
    less = probability(head, shares, expected) - probability(head, shares, got)
    return Cost(edits=max(more / _DRAWN, 0.0), whole=max(less, 0.0))


def probability(head: TextHead, shares: Floats, text: Text) -> float:
    """Return the probability of a text: the sum over all alignments (Graves et al., 4.1, forwards).

    Args:
        head: Output with the text, settled.
        shares: (steps, classes), the float model's.
        text: Without spaces at its ends, or without any; these may be said or not.
    """
    blank = head.blank or 0  # of characters alone it is None
    states = [blank]
    for kind in text:
        states += [kind, blank]
    said = shares[:, states]
    of_spaces = slice(None, None, 2) if head.ignores_spaces else [0, -1]
    said[:, of_spaces] = shares[:, sorted({blank, *head.spaces})].sum(axis=-1)[:, None]
    skips = np.array([index > 1 and kind != states[index - 2] for index, kind in enumerate(states)])
    skips[::2] = False  # no blank is passed over between two of the same kind
    ways = np.zeros(len(states))
    ways[:2] = said[0, :2]
    for step in said[1:]:
        before = np.concatenate([[0.0, 0.0], ways])
        ways = step * (ways + before[1:-1] + skips * before[:-2])
    return float(ways[-2:].sum())


def _draw(head: TextHead, shares: Floats) -> Counter[Text]:
    """Draw texts by the float model's probabilities; the draws are deterministic.

    Args:
        head: Output with the text, settled.
        shares: (steps, classes), the float model's.
    """
    points = np.random.default_rng(0).random((len(shares), _DRAWN))
    ways = [
        np.searchsorted(row, point * row[-1], side="right")
        for row, point in zip(shares.cumsum(axis=-1), points, strict=True)
    ]
    return Counter(merge(head, way) for way in np.stack(ways, axis=-1).tolist())


def significant_net_edits(expected: Sequence[Text], got: Sequence[Text]) -> float:
    """Return the significant net number of inserted or deleted characters: of the most frequent
    kind, or of all.

    Args:
        expected, got: A text per sample.
    """
    moved: dict[int | None, list[int]] = {None: []}
    for want, have in zip(expected, got, strict=True):
        if want == have:
            continue
        moved[None].append(len(have) - len(want))
        difference = Counter(have)
        difference.subtract(Counter(want))
        for kind, count in difference.items():
            moved.setdefault(kind, []).append(count)
    return max(_surely(counts) for counts in moved.values())


def _surely(counts: Sequence[int]) -> float:
    """Return the part of a sum that random signs of its terms do not explain."""
    return max(abs(sum(counts)) - _Z * math.sqrt(sum(count**2 for count in counts)), 0.0)
