"""What all parts of a profile have in common."""

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all sections have: unknown keys are errors."""
