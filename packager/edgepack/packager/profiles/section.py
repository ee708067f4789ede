"""What all sections of files that a person writes have in common."""

from typing import Annotated

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
"""A part of a whole: another number is refused as the file is read."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all sections have: unknown keys are errors."""
