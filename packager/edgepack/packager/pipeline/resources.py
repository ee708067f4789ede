"""Resources that live while a variant is prepared."""

import msgspec

from edgepack.packager.progress import Progress, silent
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.search.journal import Journal, SearchConditions
from edgepack.packager.search.time_limit import TimeLimit


class Resources(msgspec.Struct, kw_only=True):
    """Resources that live while a variant is prepared.

    Attributes:
        limit: Ends the search in time.
        journal: Earlier and present measurements.
        process: Runs the variant on its provider, and is kept for its rehearsal; None keeps none.
        progress: Called for each step.
    """

    limit: TimeLimit = msgspec.field(default_factory=lambda: TimeLimit(None))
    journal: Journal = msgspec.field(default_factory=lambda: Journal(None))
    process: ProviderProcess | None = None
    progress: Progress = silent

    def conditions(self, context: str, label: str = "", held_out: int = 0) -> SearchConditions:
        """Return the conditions of a search; see `SearchConditions`."""
        return SearchConditions(
            limit=self.limit,
            journal=self.journal,
            context=context,
            label=label,
            held_out=held_out,
        )
