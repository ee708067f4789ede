"""One combination of a search, prepared, and how its search goes on."""

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from edgepack.packager.pipeline.candidate_selection import CandidateSelector
from edgepack.packager.pipeline.selection import PreparedFloat, Selection
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.evaluator import Evaluator
from edgepack.packager.search.candidates import Demand
from edgepack.packager.search.combinations import Combination
from edgepack.packager.search.time_limit import OutOfTimeError


class SearchedCombination(msgspec.Struct, frozen=True, kw_only=True):
    """One combination, prepared.

    Attributes:
        combination: Its settings.
        evaluator: Where it is measured.
        prepared: The float model after its passes.
        chosen: The model that goes on to the gates.
        selector: Chooses again; None where that is over.
        notes: Which combination was taken of several.
    """

    combination: Combination
    evaluator: Evaluator
    prepared: PreparedFloat
    chosen: Selection
    selector: CandidateSelector | None = None
    notes: tuple[str, ...] = ()

    @property
    def profile(self) -> Profile:
        """The profile with the combination's values."""
        return self.combination.profile

    @property
    def size_bytes(self) -> int:
        """Size of the model that goes on to the gates."""
        found = self.chosen.found
        if found is None or not self.chosen.is_lowered:
            return self.prepared.size_bytes
        return found.best.judged.size_bytes

    def with_attempts_of(self, further: "SearchedCombination") -> "SearchedCombination":
        """The same model, with what was tried after it."""
        found, tried = self.chosen.found, further.chosen.found
        if found is None or tried is None:
            return self
        return replace(
            self, chosen=replace(self.chosen, found=replace(found, attempts=tried.attempts))
        )

    def go_on(self, demand: Demand) -> "SearchedCombination | None":
        """Searches this combination on, with a larger demand.

        Returns:
            The same with another model; None where no nearer candidate or no time is left.

        Raises:
            BuildError: A candidate cannot be made or run.
        """
        before = self.chosen.found
        if self.selector is None or before is None:
            return None
        try:
            chosen = self.selector.choose(demand)
        except OutOfTimeError:
            return None
        found = chosen.found
        if found is None or found.best.key == before.best.key:
            return None
        return self._with(chosen)

    def leave_float(self, nodes: Collection[str]) -> "SearchedCombination | None":
        """Searches this combination anew, with nodes that stay float.

        Returns:
            The same with another model; None where no time is left.

        Raises:
            BuildError: A candidate cannot be made or run.
        """
        if self.selector is None:
            return None
        self.selector.leave_float(nodes)
        try:
            return self._with(self.selector.choose(Demand()))
        except OutOfTimeError:
            return None

    def _with(self, chosen: Selection) -> "SearchedCombination":
        """With another model, and with what was tried before it."""
        before, found = self.chosen.found, chosen.found
        if before is not None and found is not None:
            attempts = tuple(dict.fromkeys((*before.attempts, *found.attempts)))
            chosen = replace(chosen, found=replace(found, attempts=attempts))
        return replace(self, chosen=chosen)

    def with_float_model(self) -> "SearchedCombination":
        """The same with the prepared float model in place of the best candidate."""
        return replace(self, chosen=self.chosen.with_float_model(self.prepared.path))
