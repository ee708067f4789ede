"""What a text that came out otherwise is expected to cost, without knowing what stands there.

Where the float model hesitates between two readings it is about as often right with the one as with
the other, so a variant that reads the other one is as good. Where it was sure, the other reading is
wrong. How sure it is of any text, CTC says: each step takes a class by its probability, whatever
the others take (Graves et al., Connectionist Temporal Classification, 2006, 3.1). So texts are
drawn that may stand there, and what counts is how many more edits the variant's text needs to be
those than the float model's does. Of a text as a whole it is how much less probable it is.

That is so as long as the float model hesitates with reason. It may as well be always right where it
says so with 55 %, and a variant that always reads the other one is worse then. Noise takes one
character for another as often as the other for the one, so what comes or goes on balance counts
whatever it is expected to cost, as far as it is certain.
"""

import math
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from edgepack.tasks.arrays import Floats, Outputs
from edgepack.tasks.text.decoding import Text, merge, shares_of
from edgepack.tasks.text.edits import edit_distance
from edgepack.tasks.text.head import TextHead

_CLEAR = 0.5
"""Least share of the best class in the median step: below it scores do not say how sure it is."""

_DRAWN = 128
"""Texts for each one that changed: an edit's cost is off by .06 at most (one standard error)."""

_Z = 1.96
"""Standard normal quantile of 97.5 %."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What another text is expected to cost, beyond what the float model's own does.

    Attributes:
        edits: Characters that are wrong: from 0 to the edits between both, which it is where
            nothing says how sure the model was.
        whole: Of a text that is right as a whole, 0…1; 0 where nothing says how sure the model was.
    """

    edits: float
    whole: float = 0.0


def expected_cost(head: TextHead, outputs: Outputs, expected: Text, got: Text) -> Cost:
    """What it is expected to cost that a candidate reads another text.

    Args:
        head: Where text is told, settled.
        outputs: The float model's.
        expected: What they say.
        got: What a candidate reads.
    """
    edits = float(edit_distance(expected, got))
    value = outputs[head.output]
    if not edits or head.is_of_tokens or value.dtype.kind != "f":
        return Cost(edits=edits)
    shares = shares_of(value)
    if not np.isfinite(shares).all() or np.median(shares.max(axis=-1)) < _CLEAR:
        return Cost(edits=edits)
    more = sum(
        count * (edit_distance(got, text) - edit_distance(expected, text))
        for text, count in _draw(head, shares).items()
    )
    less = probability(head, shares, expected) - probability(head, shares, got)
    return Cost(edits=max(more / _DRAWN, 0.0), whole=max(less, 0.0))


def probability(head: TextHead, shares: Floats, text: Text) -> float:
    """How probable a text is: the sum over all ways to say it (Graves et al., 4.1, forwards).

    Args:
        head: Where text is told, settled.
        shares: (steps, classes), the float model's.
        text: Without spaces at its ends, which may be said or not.
    """
    blank = head.blank or 0  # of tokens alone it is None
    states = [blank]
    for kind in text:
        states += [kind, blank]
    said = shares[:, states]
    said[:, [0, -1]] = shares[:, [blank, *head.spaces]].sum(axis=-1)[:, None]
    skips = np.array([index > 1 and kind != states[index - 2] for index, kind in enumerate(states)])
    skips[::2] = False  # no blank is passed over between two of the same kind
    ways = np.zeros(len(states))
    ways[:2] = said[0, :2]
    for step in said[1:]:
        before = np.concatenate([[0.0, 0.0], ways])
        ways = step * (ways + before[1:-1] + skips * before[:-2])
    return float(ways[-2:].sum())


def _draw(head: TextHead, shares: Floats) -> Counter[Text]:
    """Texts as often as the float model takes them for what stands there; always the same ones.

    Args:
        head: Where text is told, settled.
        shares: (steps, classes), the float model's.
    """
    points = np.random.default_rng(0).random((len(shares), _DRAWN))
    ways = [
        np.searchsorted(row, point * row[-1], side="right")
        for row, point in zip(shares.cumsum(axis=-1), points, strict=True)
    ]
    return Counter(merge(head, way) for way in np.stack(ways, axis=-1).tolist())


def significant_net_edits(expected: Sequence[Text], got: Sequence[Text]) -> float:
    """Characters that surely come, or go, on balance: of the kind of which most do, or of all.

    Args:
        expected, got: One text a sample.
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
    """What is left of a sum whose terms might as well have the other sign."""
    return max(abs(sum(counts)) - _Z * math.sqrt(sum(count**2 for count in counts)), 0.0)
