"""How near texts are to those that the float model reads: by characters, and as a whole.

Characters decide, by what their edits are expected to cost (`costs`). As a whole, a text
recognizer's lines were .90 to .97 the same where it read as many lines rightly as before, and
hardly a page ever is.
"""

from collections.abc import Sequence

import msgspec

from edgepack.packager.metrics.confidence import independent, share_bounds, share_low
from edgepack.packager.metrics.texts.costs import surely_one_way
from edgepack.packager.metrics.texts.decoding import Text
from edgepack.packager.metrics.texts.edits import edit_distance

_LEAST_EFFECT = 1.5
"""How alike the characters of a line are at least (`independent`). Of 30 lines drawn from 450, for
29 variants of a text recognizer, the bound of 95 % of expected costs held what all 450 say in
96 % of the draws where they keep .96 to .99, and in nearly all where they keep more."""


class TextAgreement(msgspec.Struct, frozen=True, kw_only=True, tag="texts"):
    """A reader's texts against the float model's, over all samples in which either reads anything.

    Attributes:
        value: Share of characters that are expected to be as right as the float model's (`costs`).
        low: Its lower bound for samples like these, one-sided, 95 %: each edit counts as one, as if
            the float model always hesitated without reason.
        unedited: Share of characters that need no edit (another one, one too many, one missing).
        characters: What the float model reads.
        count: How many texts.
        same: Share of them that are the same as a whole.
        same_low, same_high: Its bounds, 95 %.
    """

    value: float
    low: float
    unedited: float
    characters: int
    count: int
    same: float
    same_low: float
    same_high: float


def measure_texts(
    expected: Sequence[Text], got: Sequence[Text], costs: Sequence[float]
) -> TextAgreement | None:
    """The agreement over all samples; None where the float model reads nothing in any of them.

    Args:
        expected, got: What the float model and the candidate read, one text a sample.
        costs: How many characters are expected to be wrong, beyond the float model's own.
    """
    triples = [each for each in zip(expected, got, costs, strict=True) if each[0] or each[1]]
    if not any(want for want, _, _ in triples):
        return None
    sizes = [float(max(len(want), 1)) for want, _, _ in triples]
    total = sum(sizes)
    edits = [
        min(float(edit_distance(want, have)), size)
        for (want, have, _), size in zip(triples, sizes, strict=True)
    ]
    lost = [min(cost, size) for (_, _, cost), size in zip(triples, sizes, strict=True)]
    value = 1.0 - max(sum(lost), min(surely_one_way(expected, got), total)) / total
    unedited = 1.0 - sum(edits) / total
    same = edits.count(0.0) / len(triples)
    same_low, same_high = share_bounds(same, len(triples))
    return TextAgreement(
        value=value,
        low=share_low(unedited, independent(edits, sizes, _LEAST_EFFECT)),
        unedited=unedited,
        characters=sum(len(want) for want, _, _ in triples),
        count=len(triples),
        same=same,
        same_low=same_low,
        same_high=same_high,
    )
