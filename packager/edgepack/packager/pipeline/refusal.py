"""A variant that its gates refused, as an error."""

from edgepack.errors import BuildError
from edgepack.packager.reports.report import RefusedVariant


class VariantRefusedError(BuildError):
    """A gate refused a variant.

    Args:
        problem, found_in, remedy: See `EdgepackError`.
        variant: What is known of it.
    """

    def __init__(
        self, problem: str, *, found_in: str | None, remedy: str | None, variant: RefusedVariant
    ) -> None:
        super().__init__(problem, found_in=found_in, remedy=remedy)
        self.variant = variant
