"""A variant that its gates refused, as an error and in the report."""

from edgepack.errors import BuildError, EdgepackError
from edgepack.packager.reports.report import MeasuredVariant, RefusedProfile


class VariantRefusedError(BuildError):
    """A gate refused a variant.

    Args:
        problem, found_in, remedy: See `EdgepackError`.
        variant: What is known of it.
    """

    def __init__(
        self, problem: str, *, found_in: str | None, remedy: str | None, variant: MeasuredVariant
    ) -> None:
        super().__init__(problem, found_in=found_in, remedy=remedy)
        self.variant = variant


def report_refusal(profile: str, error: EdgepackError) -> RefusedProfile:
    """A profile that no variant was made for, with what was measured before it was refused."""
    best = error.variant if isinstance(error, VariantRefusedError) else None
    return RefusedProfile(
        profile=profile, problem=error.problem, remedy=error.remedy or "", best=best
    )
