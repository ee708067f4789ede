"""How near texts are to those that the float model reads: by characters, and as a whole.

Characters decide. As a whole, a text recognizer's lines were .90 to .97 the same where it read as
many lines rightly as before (spaces at an end come and go), and hardly a page ever is. With 1 % of
the characters edited, .99 to 1.01 of the rightly read lines were kept.
"""

from collections.abc import Sequence

import msgspec

from edgepack.packager.metrics.confidence import independent, share_bounds, share_low
from edgepack.packager.metrics.texts.decoding import Text


class TextAgreement(msgspec.Struct, frozen=True, kw_only=True, tag="texts"):
    """A reader's texts against the float model's, over all samples in which either reads anything.

    Attributes:
        value: Share of characters that need no edit (another one, one too many, one missing).
        low: Its lower bound for samples like these, one-sided, 95 %.
        characters: What the float model reads.
        count: How many texts.
        same: Share of them that are the same as a whole.
        same_low, same_high: Its bounds, 95 %.
    """

    value: float
    low: float
    characters: int
    count: int
    same: float
    same_low: float
    same_high: float


def measure_texts(expected: Sequence[Text], got: Sequence[Text]) -> TextAgreement | None:
    """The agreement over all samples; None where the float model reads nothing in any of them."""
    pairs = [(want, have) for want, have in zip(expected, got, strict=True) if want or have]
    if not any(want for want, _ in pairs):
        return None
    sizes = [float(max(len(want), 1)) for want, _ in pairs]
    edits = [
        min(float(edit_distance(*pair)), size) for pair, size in zip(pairs, sizes, strict=True)
    ]
    value = 1.0 - sum(edits) / sum(sizes)
    same = edits.count(0.0) / len(pairs)
    same_low, same_high = share_bounds(same, len(pairs))
    return TextAgreement(
        value=value,
        low=share_low(value, independent(edits, sizes)),
        characters=sum(len(want) for want, _ in pairs),
        count=len(pairs),
        same=same,
        same_low=same_low,
        same_high=same_high,
    )


def edit_distance(first: Text, second: Text) -> int:
    """The fewest characters to replace, add and remove that make one text of the other."""
    if first == second:
        return 0
    before = list(range(len(second) + 1))
    for row, mine in enumerate(first, start=1):
        now = [row]
        for column, other in enumerate(second, start=1):
            change = before[column - 1] + (mine != other)
            now.append(min(change, before[column] + 1, now[-1] + 1))
        before = now
    return before[-1]
