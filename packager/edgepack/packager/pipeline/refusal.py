"""Variants that their gates refused, or time did not allow, as errors and in the report."""

from collections.abc import Sequence

from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.gates.checks import Refusal
from edgepack.packager.reports.report import MeasuredVariant, RefusedProfile


class VariantRefusedError(BuildError):
    """A gate refused a variant.

    Args:
        refusals: Reasons; place and remedy come from the first.
        variant: Known facts of the variant.
    """

    def __init__(self, refusals: Sequence[Refusal], variant: MeasuredVariant) -> None:
        problems = "; ".join(refusal.problem for refusal in refusals)
        super().__init__(problems, found_in=refusals[0].found_in, remedy=refusals[0].remedy)
        self.variant = variant


class TimeEndedError(BuildError):
    """The time of the build ended before the build, or a profile, had a result."""

    def __init__(self) -> None:
        super().__init__(
            "the time of the build ended before the first candidate was finished",
            found_in="--budget",
            remedy="a longer --budget, or none; fewer calibration samples take less time",
        )


def report_refusal(profile: str, error: EdgepackError) -> RefusedProfile:
    """Return the refusal of a profile without a variant, with its measurements."""
    best = error.variant if isinstance(error, VariantRefusedError) else None
    return RefusedProfile(
        profile=profile,
        problem=error.problem,
        remedy=error.remedy or "",
        best=best,
        is_unfinished=isinstance(error, TimeEndedError),
    )
