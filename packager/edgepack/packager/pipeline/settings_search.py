"""The search of a profile: its settings in each combination, and the candidates of each.

1. For each combination: the float passes, then a choice between lowered and float
   (`candidate_selection`).
2. Of all combinations a single combination is kept (`select_cheapest`).
3. The search may continue: for a candidate nearer to the float model, or with nodes that stay
  float.

Selection of a single combination of a search, with all attempts.

Among combinations within their budget the cheapest wins: the fastest if the provider is here, then
the smallest, then the first named; if the profile prefers size, the smallest first. If none is
within, the nearest to its budget.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.errors import BuildError
from edgepack.packager.gates.checks import SLOWER_FACTOR
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.graph.held_weights import hold_weights
from edgepack.packager.graph.model_files import save_model
from edgepack.packager.graph.source_quantization import read_source_quantization
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.runner import run_float_passes
from edgepack.packager.pipeline.candidate_selection import CandidateSelector
from edgepack.packager.pipeline.prequantized import unfold
from edgepack.packager.pipeline.resources import Resources
from edgepack.packager.pipeline.selection import (
    EvaluationInputs,
    PreparedFloat,
    SearchedCombination,
    VariantPlan,
)
from edgepack.packager.profiles.pass_settings import Lowering
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import Progress
from edgepack.packager.reports.reasons import FLOAT_PRECISION
from edgepack.packager.runtime.deadline import OutOfTimeError
from edgepack.packager.runtime.evaluator import Venue, profile_settings
from edgepack.packager.runtime.trial import try_model
from edgepack.packager.search.attempts import Attempt
from edgepack.packager.search.combinations import Combination
from edgepack.packager.search.context import describe_context
from edgepack.packager.search.search_target import SearchTarget

_TIMEOUT_S = 300.0
"""Of opening the float model on its provider."""


class SettingsSearch:
    """Searches the settings of a profile, and continues in the kept combination.

    The search stores its measurements; its results are values.

    Args:
        inputs: Samples that candidates are made from and evaluated on.
        plan: Combinations to try.
        resources: Remaining time, journal, and receiver of progress.
        work_dir: Folder for everything that is written.
    """

    def __init__(
        self, inputs: EvaluationInputs, plan: VariantPlan, resources: Resources, work_dir: Path
    ) -> None:
        self._inputs = inputs
        self._plan = plan
        self._resources = resources
        self._folder = work_dir
        self._selector: CandidateSelector | None = None

    @property
    def selector(self) -> CandidateSelector:
        """Selects among candidates of the combination that was kept.

        Raises:
            ValueError: Nothing was searched yet.
        """
        if self._selector is None:
            raise ValueError("nothing was searched yet")
        return self._selector

    def run(self) -> SearchedCombination:
        """Prepare every combination and keep the cheapest; see the steps above.

        Raises:
            BuildError: A pass failed or a candidate cannot be made or run, in every combination.
            OutOfTimeError: The time was used up before the first candidate.
        """
        searched: list[SearchedCombination] = []
        selectors: list[CandidateSelector] = []
        skipped: list[str] = []
        failed: list[BuildError] = []
        prepared: dict[bytes, PreparedFloat] = {}
        for number, combination in enumerate(self._plan.combinations, start=1):
            folder = self._folder / f"combination-{number}" if combination.words else self._folder
            folder.mkdir(parents=True, exist_ok=True)
            key = _float_passes(combination.profile)
            try:
                self._resources.limit.check()
                if key not in prepared:
                    prepared[key] = run_passes(
                        self._inputs,
                        combination.profile,
                        self._plan.venue,
                        folder,
                        self._resources.progress,
                    )
                    self._try_float(prepared[key], combination.profile)
                selector = self._make_selector(combination, prepared[key], folder)
                selection = selector.select(SearchTarget())
            except OutOfTimeError:
                skipped.append(f"no time was left for {combination.words}")
                continue
            except BuildError as error:
                failed.append(error)
                skipped.append(f"{combination.words} cannot be built ({error.problem})")
                continue
            selectors.append(selector)
            searched.append(
                SearchedCombination(
                    combination=combination,
                    venue=self._plan.venue,
                    prepared=prepared[key],
                    selection=selection,
                )
            )
        if not searched and not failed:
            raise OutOfTimeError
        if not searched:
            raise failed[0]
        best = select_cheapest(searched)
        self._selector = next(
            selector for selector, entry in zip(selectors, searched, strict=True) if entry is best
        )
        return with_whole_search(best, searched, skipped)

    def _try_float(self, prepared: PreparedFloat, profile: Profile) -> None:
        """Open the float model in another process, where a vendor's library may crash.

        Raises:
            BuildError: It does not survive the provider that candidates are to run on.
        """
        if self._plan.venue.is_native and profile.device.provider != CPU_PROVIDER:
            try_model(
                prepared.published,
                self._inputs.split.search.pick(range(1)),
                profile_settings(profile),
                timeout_s=self._resources.limit.build.timeout_s(_TIMEOUT_S),
            )

    def take_beaten(self, searched: SearchedCombination) -> SearchedCombination | None:
        """Return the combination with the candidate that lost the race of the scopes; None without
        one, or if no time is left.
        """
        try:
            selection = self.selector.select_beaten()
        except OutOfTimeError:
            return None
        return None if selection is None else searched.with_selection(selection)

    def search_further(
        self, searched: SearchedCombination, target: SearchTarget
    ) -> SearchedCombination | None:
        """Search the combination on, with a stricter target.

        Returns:
            The same with another model; None where no nearer candidate or no time is left.

        Raises:
            BuildError: A candidate cannot be made or run.
        """
        before = searched.selection.found
        if before is None:
            return None
        try:
            selection = self.selector.select(target)
        except OutOfTimeError:
            return None
        found = selection.found
        if found is None or found.best.is_same_as(before.best):
            return None
        return searched.with_selection(selection)

    def exclude_nodes(
        self, searched: SearchedCombination, nodes: Collection[str]
    ) -> SearchedCombination | None:
        """Search the combination again, with nodes that stay float.

        Returns:
            The same with another model; None where no time is left.

        Raises:
            BuildError: A candidate cannot be made or run.
        """
        self.selector.exclude_nodes(nodes)
        try:
            return searched.with_selection(self.selector.select(SearchTarget()))
        except OutOfTimeError:
            return None

    def _make_selector(
        self, combination: Combination, prepared: PreparedFloat, folder: Path
    ) -> CandidateSelector:
        inputs = self._inputs
        context = describe_context(inputs.source, inputs.split, combination.profile, inputs.metric)
        return CandidateSelector(
            prepared,
            combination.profile,
            self._plan.venue,
            inputs,
            self._resources.conditions(context, combination.words, inputs.split.held_out.count),
            folder,
            self._resources.progress,
        )


def _float_passes(profile: Profile) -> bytes:
    entries = [entry for entry in profile.passes if not isinstance(entry, Lowering)]
    return msgspec.json.encode((entries, profile.limits))


def run_passes(
    inputs: EvaluationInputs, profile: Profile, venue: Venue, folder: Path, progress: Progress
) -> PreparedFloat:
    """Return the float model after a profile's float passes.

    Args:
        inputs: Has the source model, and the samples that passes may look at.
        profile: The profile.
        venue: Venue of the trials.
        folder: Folder for the model; must exist.
        progress: Called for each pass.

    Raises:
        BuildError: A pass failed.
    """
    context = PassContext(
        profile_name=profile.name,
        limits=profile.limits,
        samples=inputs.split.calibration,
        work_dir=folder,
        simulator_version=venue.version if venue.is_simulated else "",
    )
    source, notes = unfold(inputs.source.model, profile)
    passed = run_float_passes(source, profile, context, progress)
    path = folder / "prepared.onnx"
    save_model(passed.model, path)
    held = hold_weights(passed.model, folder / "prepared.weights")
    published, precision = path, FLOAT_PRECISION
    if source is not inputs.source.model and profile.gates.float_instead:
        as_given = run_float_passes(inputs.source.model, profile, context, progress)
        published = folder / "as_given.onnx"
        save_model(as_given.model, published)
        own = read_source_quantization(as_given.model.graph)
        precision = own.precision if own is not None else FLOAT_PRECISION
    return PreparedFloat(
        model=held, published=published, precision=precision, notes=(*notes, *passed.notes)
    )


_SAME_SIZE = 1.01
"""Within this factor two models have the same size: metadata takes some bytes."""


def select_cheapest(searched: Sequence[SearchedCombination]) -> SearchedCombination:
    """Select a combination; see above."""
    within = [entry for entry in searched if entry.selection.holds]
    if not within:
        best = searched[0]
        for entry in searched[1:]:
            if _verdict(entry).beats(_verdict(best)):
                best = entry
        return best
    if within[0].profile.gates.prefer == "size":
        return _fastest(_smallest(within))[0]
    return _smallest(_fastest(within))[0]


def _fastest(entries: Sequence[SearchedCombination]) -> list[SearchedCombination]:
    """Return the fastest combinations, in order; all if any time is unknown."""
    latencies = [entry.selection.latency_ms for entry in entries]
    known = [latency for latency in latencies if latency is not None]
    if len(known) < len(entries):
        return list(entries)
    return [
        entry
        for entry, latency in zip(entries, known, strict=True)
        if latency <= SLOWER_FACTOR * min(known)
    ]


def _smallest(entries: Sequence[SearchedCombination]) -> list[SearchedCombination]:
    least = min(entry.size_bytes for entry in entries)
    return [entry for entry in entries if entry.size_bytes <= _SAME_SIZE * least]


def _verdict(entry: SearchedCombination) -> Verdict:
    """Return the verdict on a combination that does not hold, which is always a lowered model's."""
    if entry.selection.found is None:
        raise ValueError("nothing was searched, so nothing can miss the budget")
    return entry.selection.found.best.verdict


def with_whole_search(
    best: SearchedCombination, searched: Sequence[SearchedCombination], skipped: Sequence[str]
) -> SearchedCombination:
    """Return the kept combination, with the attempts of all combinations."""
    if len(searched) + len(skipped) < 2:
        return best
    note = (
        f"Of {len(searched) + len(skipped)} combinations, {best.combination.words} was taken: "
        + (
            "the cheapest that holds the budget"
            if best.selection.holds
            else "none holds the budget"
        )
        + "".join(f"; {words}" for words in skipped)
        + "."
    )
    found = best.selection.found
    if found is not None:
        found = replace(found, attempts=_all_attempts(searched))
    latencies_ms = {
        key: taken for entry in searched for key, taken in entry.selection.latencies_ms.items()
    }
    selection = replace(best.selection, found=found, latencies_ms=latencies_ms)
    return replace(best, selection=selection, notes=(note,))


def _all_attempts(searched: Sequence[SearchedCombination]) -> tuple[Attempt, ...]:
    return tuple(
        attempt
        for entry in searched
        if entry.selection.found is not None
        for attempt in entry.selection.found.attempts
    )
