"""Base of the sections of user-written files."""

from typing import Annotated

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
"""A part of a whole: another number is refused as the file is read."""

Stated = Annotated[int, msgspec.Meta(ge=1)]
"""A count that is 0 only where the file does not state it: a written 0 has no meaning."""

StatedName = Annotated[str, msgspec.Meta(min_length=1)]
"""A name that is "" only where the file does not state it."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section that rejects unknown keys."""
