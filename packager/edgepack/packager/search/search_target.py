"""Target of a search, and the stricter target after a rejection.

Where the held-out samples miss the budget by little, little more is asked for. The loss of a
candidate, as a share of the budget's allowance, is `1 - spare`. If a candidate loses `h` on the
held-out samples and `s` on the search samples, then a candidate that loses `s (1 - margin) / h`
there is expected to leave that margin on the held-out samples too. Errors add up as powers: the
outputs' error shrinks by the square root of that. A failure without a size never requires less than
this, and no failure requires more than the fixed steps. The fixed steps also apply without a miss:
if samples are too few for certainty, or a provider computes other values.

The last time the fixed step is taken for any miss: there is no further attempt.
"""

import math

import msgspec

from edgepack.packager.gates.verdict import Verdict


class SearchTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Target of a search's candidates.

    Attributes:
        reserve: Share of the budget that a candidate should leave, as a margin for other samples.
        noise_max: Greatest mean nrmse of its outputs. If few decisions are counted, nearly every
            candidate reaches all of them, and only the noise distinguishes candidates.
    """

    reserve: float = 0.2
    noise_max: float = math.inf

    def is_met(self, verdict: Verdict) -> bool:
        """Return True if a candidate with this verdict will do."""
        return verdict.passed and verdict.spare >= self.reserve and verdict.noise <= self.noise_max

    def relaxed(self, refused: Verdict, best: Verdict) -> "SearchTarget":
        """Return half of the best candidate's gain on a rejected candidate, if a full gain is
        impossible.
        """
        return SearchTarget(
            reserve=min(self.reserve, (refused.spare + best.spare) / 2),
            noise_max=max(self.noise_max, (refused.noise + best.noise) / 2),
        )


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """Upper limit of the targets.

    Attributes:
        reserve: Share of the budget that is left.
        share: Greatest error, as a share of the refused candidate's.
        margin: Where less is asked for, the share of the budget that shall be left on the held-out
            samples; None where that is never so.
    """

    reserve: float
    share: float
    margin: float | None = None


_STEPS = (
    _Step(reserve=0.6, share=0.7, margin=0.1),
    _Step(reserve=0.9, share=0.5, margin=0.25),
)
_LAST = _Step(reserve=0.9, share=0.7)
_LAST_AFTER_SMALL = _Step(reserve=0.9, share=0.5)

MOST_TIMES = len(_STEPS) + 1
"""How often a search may go on."""


class StricterTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target after a refusal, and its reason.

    Attributes:
        target: The target.
        share: Its greatest error, as a share of the refused candidate's.
        is_in_proportion: Whether the step is smaller than the fixed step.
    """

    target: SearchTarget
    share: float
    is_in_proportion: bool = False


def stricter_target(
    turn: int, found: Verdict, missed: Verdict | None, before: StricterTarget | None
) -> StricterTarget:
    """Return the target of the next candidate.

    Args:
        turn: How often the search went on before, below `MOST_TIMES`.
        found: Verdict of the search samples on the refused candidate.
        missed: Verdict of the held-out samples, if failed; None for another reason.
        before: Target of the turn before; None the first time.
    """
    if turn >= len(_STEPS):
        step = _LAST_AFTER_SMALL if before and before.is_in_proportion else _LAST
    else:
        step = _STEPS[turn]
    share, reserve = step.share, step.reserve
    if missed is not None and step.margin is not None:
        lost = 1.0 - min(missed.spare, 0.0)
        factor = (1.0 - step.margin) / lost
        share = max(share, math.sqrt(factor))
        reserve = min(reserve, 1.0 - (1.0 - found.spare) * factor)
    return StricterTarget(
        target=SearchTarget(reserve=reserve, noise_max=share * found.noise),
        share=share,
        is_in_proportion=share > step.share,
    )
