"""Agreement of texts with the float model's: by characters, and by lines.

Users of lines need whole lines: for a nearly certain recognizer, an error in 400 characters is an
error in 40 lines. A page is hardly ever equal as a whole, so a page counts as many lines. Both
shares come from the expected cost of edits (`costs`), and the lower share decides.
"""

from collections.abc import Sequence

import msgspec

from edgepack.tasks.intervals import independent, kept_low, share_bounds, share_low
from edgepack.tasks.text.costs import Cost, significant_net_edits
from edgepack.tasks.text.decoding import Text
from edgepack.tasks.text.edits import edit_distance

_LEAST_EFFECT = 1.5
"""How alike the characters of a line are at least (`independent`). Of 30 lines drawn from 450, for
29 variants of a text recognizer, the bound of 95 % of expected costs held what all 450 say in
96 % of the draws where they keep .96 to .99, and in nearly all where they keep more."""

_LINE = 25
"""Characters from which on a text counts as more than one line: PaddleOCR's `max_text_length`."""


class TextAgreement(msgspec.Struct, frozen=True, kw_only=True, tag="texts"):
    """A reader's texts against the float model's, over all samples in which either reads anything.

    Attributes:
        of_characters, of_lines: Shares that are expected to be as right as the float model's.
        bounds: Lower bounds of both for samples like these, one-sided, 95 %, each after the value
            that the bound approaches with more samples. Of characters each edit counts fully, as if
            the float model always hesitated without reason.
        low_as_seen: The lower bound, for lines from the variance between lines alone: few lines
            that are all kept give no reason to doubt.
        unedited: Share of characters that need no edit (replacement, insertion, deletion).
        characters: Characters that the float model reads.
        count: How many texts.
        same: Share of texts that are equal as a whole.
        same_low, same_high: Its bounds, 95 %.
    """

    of_characters: float
    of_lines: float
    bounds: tuple[tuple[float, float], ...]
    low_as_seen: float
    unedited: float
    characters: int
    count: int
    same: float
    same_low: float
    same_high: float

    @property
    def value(self) -> float:
        """Kept share of the text: of characters, or of lines if lower."""
        return min(self.of_characters, self.of_lines)

    @property
    def low(self) -> float:
        """Its lower bound."""
        return min(low for _, low in self.bounds)


def measure_texts(
    expected: Sequence[Text], got: Sequence[Text], costs: Sequence[Cost]
) -> TextAgreement | None:
    """Return the agreement over all samples; None if the float model reads nothing in any sample.

    Args:
        expected, got: Texts of the float model and of the candidate, a text per sample.
        costs: Expected cost of each difference.
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
    lost = [min(cost.edits, size) for (_, _, cost), size in zip(triples, sizes, strict=True)]
    of_characters = 1.0 - max(sum(lost), min(significant_net_edits(expected, got), total)) / total
    unedited = 1.0 - sum(edits) / total
    lines = [max(size / _LINE, 1.0) for size in sizes]
    lost_lines = [
        min(cost.whole * line, characters)
        for (_, _, cost), line, characters in zip(triples, lines, lost, strict=True)
    ]
    same = edits.count(0.0) / len(triples)
    same_low, same_high = share_bounds(same, len(triples))
    of_lines = 1.0 - sum(lost_lines) / sum(lines)
    by_characters = (unedited, share_low(unedited, independent(edits, sizes, _LEAST_EFFECT)))
    by_lines = (of_lines, share_low(of_lines, sum(lines)))
    return TextAgreement(
        of_characters=of_characters,
        of_lines=of_lines,
        bounds=(by_characters, by_lines),
        low_as_seen=min(by_characters[1], kept_low(lost_lines, lines)),
        unedited=unedited,
        characters=sum(len(want) for want, _, _ in triples),
        count=len(triples),
        same=same,
        same_low=same_low,
        same_high=same_high,
    )
