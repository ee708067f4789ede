"""Conditions of a search: limits, journal, and end."""

import msgspec

from edgepack.packager.search.journal import Journal
from edgepack.packager.search.search_target import SearchTarget
from edgepack.packager.search.time_limit import TimeLimit


class SearchConditions(msgspec.Struct, kw_only=True):
    """Conditions of a search: limits, journal, and end.

    Attributes:
        limit: Ends the search in time.
        journal: Stores measurements.
        context: Digest of all that the measurements depend on.
        label: See `Candidate`.
        held_out: Number of samples for the result after the search.
        target: When the search may end.
    """

    limit: TimeLimit
    journal: Journal
    context: str = ""
    label: str = ""
    held_out: int = 0
    target: SearchTarget = msgspec.field(default_factory=SearchTarget)
