"""Base of the sections of user-written files."""

from typing import Annotated

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
"""A part of a whole: another number is refused as the file is read."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section that rejects unknown keys."""
