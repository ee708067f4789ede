"""Prepares a profile's model in each combination that is searched, and keeps the cheapest.

1. For each combination: the float passes, then a choice between lowered and float (`choosing`).
2. Of those within their budget the cheapest: the fastest where the provider is here, else the
   smallest, and of equals the one that was named first. If none is, the nearest to its budget.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.choice import Chosen, Grounds, PreparedFloat
from edgepack.packager.choosing import Chooser
from edgepack.packager.graph.held_weights import hold_weights
from edgepack.packager.graph.model_files import save_model
from edgepack.packager.judging.evaluation import Evaluator, Venue
from edgepack.packager.judging.verdict import Verdict
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.runner import run_float_passes
from edgepack.packager.profile.pass_settings import Lowering
from edgepack.packager.profile.schema import Profile
from edgepack.packager.search.candidates import Demand
from edgepack.packager.search.combinations import Combination
from edgepack.packager.search.context import describe_context
from edgepack.packager.search.journal import Journal
from edgepack.packager.search.time_limit import OutOfTimeError, TimeLimit
from edgepack.packager.search.tries import Conditions
from edgepack.packager.source.model import SourceModel
from edgepack.packager.variant import Attempt

_SAME_LATENCY = 1.1
_SAME_SIZE = 1.01
"""Within these factors two models cost the same: medians vary, and metadata takes some bytes."""


class SearchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is searched for one profile, and with what.

    Attributes:
        combinations: At least one, in the order to try.
        limit: Ends the search in time.
        journal: What was measured before.
    """

    combinations: tuple[Combination, ...]
    limit: TimeLimit
    journal: Journal


class Explored(msgspec.Struct, frozen=True, kw_only=True):
    """One combination, prepared.

    Attributes:
        combination: Its settings.
        evaluator: Where it is measured.
        prepared: The float model after its passes.
        chosen: The model that goes on to the gates.
        chooser: Chooses again; None where that is over.
        notes: Which combination was taken of several.
    """

    combination: Combination
    evaluator: Evaluator
    prepared: PreparedFloat
    chosen: Chosen
    chooser: Chooser | None = None
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

    def with_attempts_of(self, further: "Explored") -> "Explored":
        """The same model, with what was tried after it."""
        found, tried = self.chosen.found, further.chosen.found
        if found is None or tried is None:
            return self
        return replace(
            self, chosen=replace(self.chosen, found=replace(found, attempts=tried.attempts))
        )

    def go_on(self, demand: Demand) -> "Explored | None":
        """Searches this combination on, with a larger demand.

        Returns:
            The same with another model; None where no nearer candidate or no time is left.

        Raises:
            BuildError: A candidate cannot be made or run.
        """
        before = self.chosen.found
        if self.chooser is None or before is None:
            return None
        try:
            chosen = self.chooser.choose(demand)
        except OutOfTimeError:
            return None
        found = chosen.found
        if found is None or found.best.key == before.best.key:
            return None
        return self._with(chosen)

    def leave_float(self, nodes: Collection[str]) -> "Explored | None":
        """Searches this combination anew, with nodes that stay float.

        Returns:
            The same with another model; None where no time is left.

        Raises:
            BuildError: A candidate cannot be made or run.
        """
        if self.chooser is None:
            return None
        self.chooser.leave_float(nodes)
        try:
            return self._with(self.chooser.choose(Demand()))
        except OutOfTimeError:
            return None

    def _with(self, chosen: Chosen) -> "Explored":
        """With another model, and with what was tried before it."""
        before, found = self.chosen.found, chosen.found
        if before is not None and found is not None:
            attempts = tuple(dict.fromkeys((*before.attempts, *found.attempts)))
            chosen = replace(chosen, found=replace(found, attempts=attempts))
        return replace(self, chosen=chosen)

    def with_float_model(self) -> "Explored":
        """The same with the prepared float model in place of the best candidate."""
        return replace(self, chosen=self.chosen.with_float_model(self.prepared.path))


def plan_of(profile: Profile) -> SearchPlan:
    """A plan that tries a profile as it stands, without a limit and without a journal."""
    return SearchPlan(
        combinations=(Combination(words="", profile=profile),),
        limit=TimeLimit(None),
        journal=Journal(None),
    )


def explore(
    source: SourceModel,
    plan: SearchPlan,
    grounds: Grounds,
    *,
    venue: Venue,
    work_dir: Path,
) -> Explored:
    """Prepares every combination and keeps the cheapest; see the steps above.

    Args:
        source: The source model.
        plan: What to try.
        grounds: What candidates are made and judged with.
        venue: Where the profile can run here.
        work_dir: Folder for everything that is written.

    Raises:
        BuildError: A pass failed or a candidate cannot be made or run, in every combination.
    """
    explored: list[Explored] = []
    skipped: list[str] = []
    failed: list[BuildError] = []
    prepared: dict[bytes, PreparedFloat] = {}
    for number, combination in enumerate(plan.combinations, start=1):
        profile = combination.profile
        folder = work_dir / f"combination-{number}" if combination.words else work_dir
        folder.mkdir(parents=True, exist_ok=True)
        key = _float_passes(profile)
        evaluator = Evaluator(profile, venue)
        try:
            plan.limit.check()
            if key not in prepared:
                prepared[key] = run_passes(source, profile, grounds, folder)
            chooser = Chooser(
                prepared=prepared[key],
                profile=profile,
                evaluator=evaluator,
                grounds=grounds,
                conditions=Conditions(
                    limit=plan.limit,
                    journal=plan.journal,
                    context=describe_context(source, grounds.split, profile, grounds.metric),
                    label=combination.words,
                ),
                work_dir=folder,
            )
            chosen = chooser.choose(Demand())
        except OutOfTimeError:
            skipped.append(f"no time was left for {combination.words}")
            continue
        except BuildError as error:
            failed.append(error)
            skipped.append(f"{combination.words} cannot be built ({error.problem})")
            continue
        explored.append(
            Explored(
                combination=combination,
                evaluator=evaluator,
                prepared=prepared[key],
                chosen=chosen,
                chooser=chooser,
            )
        )
    if not explored:
        raise failed[0]
    return _with_whole_search(_cheapest(explored), explored, skipped)


def _float_passes(profile: Profile) -> bytes:
    entries = [entry for entry in profile.passes if not isinstance(entry, Lowering)]
    return msgspec.json.encode((entries, profile.limits))


def run_passes(
    source: SourceModel, profile: Profile, grounds: Grounds, folder: Path
) -> PreparedFloat:
    """The float model after a profile's float passes.

    Args:
        source: The source model.
        profile: The profile.
        grounds: Has the samples that passes may look at.
        folder: Where it is written; it must exist.

    Raises:
        BuildError: A pass failed.
    """
    context = PassContext(
        profile_name=profile.name,
        limits=profile.limits,
        samples=grounds.split.calibration,
        work_dir=folder,
    )
    passed = run_float_passes(source.model, profile, context, grounds.progress)
    path = folder / "prepared.onnx"
    save_model(passed.model, path)
    held = hold_weights(passed.model, folder / "prepared.weights")
    return PreparedFloat(model=held, path=path, notes=passed.notes)


def _cheapest(explored: Sequence[Explored]) -> Explored:
    within = [entry for entry in explored if entry.chosen.holds]
    if not within:
        best = explored[0]
        for entry in explored[1:]:
            if _verdict(entry).beats(_verdict(best)):
                best = entry
        return best
    latencies = [entry.chosen.latency_ms for entry in within]
    known = [latency for latency in latencies if latency is not None]
    if len(known) == len(within):
        within = [
            entry
            for entry, latency in zip(within, known, strict=True)
            if latency <= _SAME_LATENCY * min(known)
        ]
    smallest = min(entry.size_bytes for entry in within)
    return next(entry for entry in within if entry.size_bytes <= _SAME_SIZE * smallest)


def _verdict(entry: Explored) -> Verdict:
    """The verdict on a combination that does not hold, which is always a lowered model's."""
    if entry.chosen.found is None:
        raise ValueError("nothing was searched, so nothing can miss the budget")
    return entry.chosen.found.best.verdict


def _with_whole_search(
    best: Explored, explored: Sequence[Explored], skipped: Sequence[str]
) -> Explored:
    """The combination that was kept, with what was tried in all of them."""
    if len(explored) + len(skipped) < 2:
        return best
    note = (
        f"Of {len(explored) + len(skipped)} combinations, {best.combination.words} was taken: "
        + ("the cheapest that holds the budget" if best.chosen.holds else "none holds the budget")
        + "".join(f"; {words}" for words in skipped)
        + "."
    )
    found = best.chosen.found
    if found is not None:
        found = replace(found, attempts=_all_attempts(explored))
    latencies_ms = {
        key: taken for entry in explored for key, taken in entry.chosen.latencies_ms.items()
    }
    chosen = replace(best.chosen, found=found, latencies_ms=latencies_ms)
    return replace(best, chosen=chosen, notes=(note,))


def _all_attempts(explored: Sequence[Explored]) -> tuple[Attempt, ...]:
    return tuple(
        attempt
        for entry in explored
        if entry.chosen.found is not None
        for attempt in entry.chosen.found.attempts
    )
