"""The verdict on what was found, and a search that goes on where samples or provider refuse it.

The search chooses by few samples, and the best of many candidates is partly the luckiest one. Where
the held-out samples refuse it, the search goes on with a larger demand: a larger reserve, and less
error than the refused candidate, since where few decisions are counted nearly every candidate
reaches all of them. A small miss makes a small demand (`larger_demand`). That happens at most three
times. Where no candidate meets the demand, the most
accurate one is that with the most float nodes: before the last time, one that gains half as much is
tried in its place. It goes on too, at most twice, where the candidate passes only because, of few
samples, one may differ: one of 29 may stand for one in a hundred or for one in ten (a file-type
model kept .966 of its decisions and 95.8 % of its task's metric). Certainty is not bought with all
that lowering saves, since the float model is surer than any candidate: where what it finds has the
bytes and the multiply-accumulates of the float model, the one before is kept.

What leaks: of the held-out samples the search learns up to three times "no", and by how much, and
nothing of which sample or node is to blame. A candidate that is truly below the budget has at most
four chances to pass by luck instead of one, and each has to be nearer to the float model than the
one before. No candidate is compared with another by them, and what they pass is taken: to look
there for the fewest nodes that pass would be to choose by them.

It goes on as well where the provider, here or simulated, computes something else than the CPU's
stand-in: another method or one more float node may be what it computes rightly. Where it refuses
the whole graph, the nodes to blame stay float (`refused_whole`).

Where they refuse to the end, and the profile says so, the float model is published.

What is looked at inside a model is looked at before the provider runs it: a simulator takes 200 MB,
and stays until the rehearsal.
"""

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.graph.model_files import load_model, save_model
from edgepack.packager.metrics.inspection import Inspection
from edgepack.packager.number_format import format_metric
from edgepack.packager.pipeline.holdout_verdict import (
    HoldoutSet,
    ValidatedCombination,
    judge_on_holdout,
)
from edgepack.packager.pipeline.prepared_combination import SearchedCombination
from edgepack.packager.pipeline.provider_validation import (
    ProviderRefusedError,
    ProviderRun,
    ProviderValidation,
)
from edgepack.packager.pipeline.savings_summary import saves_nothing
from edgepack.packager.pipeline.unsupported_nodes import exclude_unsupported
from edgepack.packager.progress import Progress
from edgepack.packager.search.candidates import Demand
from edgepack.packager.search.larger_demand import MOST_TIMES, Larger, larger_demand
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.watched_outputs import without_watched

_TURNS_TO_BE_SURE = 2
"""The last turn is for what is refused: what passes, surely or not, is taken."""

_MOST_TIMES_REFUSED = 3
"""How often nodes are left float for a provider that refuses the whole graph."""

Look = Callable[[SearchedCombination], Inspection | None]
"""Looks inside what was found; None where nothing was lowered."""


_EASED = "None does: half of what the most accurate candidate gains is taken for enough."


class HoldoutValidation:
    """Writes a variant's model and judges it; see above for what a refusal leads to.

    Args:
        searched: What was prepared.
        source: The source model, whose metadata the variant keeps.
        final: Where the variant's model is written, without the outputs that are only watched.
        held_out: What gives the verdict.
        provider_validation: Runs what the held-out samples are sure of, and what is left over.
        look: Looks inside what is run there, first.
        progress: Told about each step.
    """

    def __init__(
        self,
        searched: SearchedCombination,
        source: SourceModel,
        final: Path,
        held_out: HoldoutSet,
        provider_validation: ProviderValidation,
        look: Look,
        progress: Progress,
    ) -> None:
        self._searched = searched
        self._source = source
        self._final = final
        self._measured = _measured(source, final)
        self._held_out = held_out
        self._provider_validation = provider_validation
        self._look = look
        self._progress = progress
        self._notes: list[str] = []
        self._validated: ValidatedCombination

    def confirm(self) -> ValidatedCombination:
        """Judges, searches on where that is refused, and judges again.

        Raises:
            BuildError: A candidate cannot be made or run.
        """
        self._judge()
        self._go_on()
        return self._finish()

    def _judge(self) -> None:
        """Writes and judges what was found; the provider runs it where the samples are sure."""
        self._validated = self._judge_here()
        if _is_sure(self._validated.verdict):
            self._run_there()

    def _go_on(self) -> None:
        """Searches on while samples or provider object, a candidate may be nearer, and it pays."""
        larger: Larger | None = None
        for turn in range(MOST_TIMES):
            found, verdict = self._searched.chosen.found, self._validated.verdict
            if found is None or not self._searched.chosen.may_go_on:
                return
            if turn >= _TURNS_TO_BE_SURE and verdict.passed:
                return
            objection = _objection(self._validated, found.best.words)
            if not objection:
                return
            missed = None if verdict.passed else verdict
            larger = larger_demand(turn, found.best.verdict, missed, larger)
            further = self._search_on(turn, larger, objection)
            if further is None:
                return
            if verdict.passed and not _refuses(self._validated.ran) and saves_nothing(further):
                self._notes.append(_describe_surer(further))
                self._searched = self._searched.with_attempts_of(further)
                return
            self._searched = further
            self._judge()

    def _finish(self) -> ValidatedCombination:
        """What is left in the end: looked at and run, and the float model where nothing else is."""
        ran, gates = self._validated.ran, self._searched.profile.gates
        is_refused = not self._validated.verdict.passed or _refuses(ran)
        if is_refused and self._searched.chosen.is_lowered and "inaccurate" in gates.float_instead:
            who = "its provider refuses" if _refuses(ran) else "the held-out samples refuse"
            self._notes.append(f"The float model is published: {who} every quantized one.")
            self._searched = self._searched.with_float_model()
            self._judge()
        if self._validated.ran is None:
            self._run_there()
        inspection = self._validated.inspection or self._look(self._searched)
        return replace(
            self._validated,
            searched=replace(self._searched, selector=None),
            inspection=inspection,
            notes=tuple(self._notes),
        )

    def _judge_here(self) -> ValidatedCombination:
        self._provider_validation.load_ahead(self._searched.profile, self._searched.evaluator.venue)
        size_bytes = _write(self._searched.chosen.path, self._source, self._final, self._measured)
        return judge_on_holdout(
            self._searched, size_bytes, self._measured, self._held_out, self._progress
        )

    def _run_there(self) -> None:
        """Runs it on the provider; nodes for which that refuses the whole graph stay float."""
        for _ in range(_MOST_TIMES_REFUSED):
            try:
                self._validated = self._ran_there()
                return
            except ProviderRefusedError as error:
                left = exclude_unsupported(
                    self._searched, error, self._provider_validation, self._progress
                )
            self._searched = left.searched
            self._notes.append(left.note)
            self._validated = self._judge_here()
        self._validated = self._ran_there()

    def _ran_there(self) -> ValidatedCombination:
        searched = self._searched
        if not searched.evaluator.venue.can_run:
            return self._validated
        inspection = self._look(searched)
        ran = self._provider_validation.run(
            self._measured, searched.profile, searched.evaluator, self._validated.distances
        )
        return replace(self._validated, inspection=inspection, ran=ran)

    def _search_on(self, turn: int, larger: Larger, objection: str) -> SearchedCombination | None:
        """What a larger demand finds; None, with a note, where that is nothing new."""
        demand = larger.demand
        self._notes.append(
            f"{objection}: the search went on for a candidate that leaves {demand.reserve:.0%} "
            f"of the budget and makes {larger.share:.0%} of its error"
            f"{', in proportion to the miss' if larger.is_in_proportion else ''}."
        )
        further = self._searched.go_on(demand)
        if further is None:
            self._notes.append(_describe_standstill(self._searched))
            return None
        if turn < _TURNS_TO_BE_SURE:
            eased = _eased(self._searched, further, demand)
            self._notes += [_EASED] if eased is not None else []
            further = eased or further
        return further


def _eased(
    refused: SearchedCombination, further: SearchedCombination, demand: Demand
) -> SearchedCombination | None:
    """Between a refused candidate and the most accurate one, where nothing meets the demand."""
    before, after = refused.chosen.found, further.chosen.found
    if before is None or after is None:
        return None
    best = after.best.verdict
    if demand.is_met(best) or not best.passed:
        return None
    return further.go_on(demand.eased(before.best.verdict, best))


def _describe_surer(further: SearchedCombination) -> str:
    found = further.chosen.found
    words = found.best.words if found else ""
    return (
        f"What may be surer saves nothing ({words}): the candidate before is kept, which the "
        "held-out samples pass. More of them would tell how sure it is."
    )


def _is_sure(verdict: Verdict) -> bool:
    return verdict.passed and not verdict.forgiven


def _refuses(ran: ProviderRun | None) -> bool:
    return ran is not None and ran.refusal is not None


def _describe_standstill(searched: SearchedCombination) -> str:
    """Why a search that went on has nothing new."""
    if searched.selector is not None and searched.selector.is_out_of_time:
        return "Its time was used up before it found a candidate nearer to the float model."
    return "It found no candidate nearer to the float model."


def _objection(validated: ValidatedCombination, words: str) -> str:
    """Why a candidate, in these words, is not taken as it is; "" where it is."""
    verdict = validated.verdict
    if not _is_sure(verdict):
        return (
            f"The held-out samples {'are not sure of' if verdict.passed else 'refuse'} {words} "
            f"({verdict.metric} {format_metric(verdict.value)}, the budget is "
            f"{format_metric(verdict.budget)})"
        )
    ran = validated.ran
    if ran is None or ran.refusal is None:
        return ""
    return f"On its provider {words} is off ({ran.refusal.problem})"


def _measured(source: SourceModel, final: Path) -> Path:
    """Where the model lies that is measured: with what is watched, if anything is."""
    return final.parent.with_name("measured") / final.name if source.watched else final


def _write(path: Path, source: SourceModel, final: Path, measured: Path) -> int:
    """Writes the variant's model, with the source's metadata, which applications read."""
    model = load_model(path)
    del model.metadata_props[:]
    model.metadata_props.extend(sorted(source.model.metadata_props, key=lambda entry: entry.key))
    model.producer_name = "edgepack"
    model.producer_version = ""
    if measured != final:
        measured.parent.mkdir(exist_ok=True)
        save_model(model, measured)
        without_watched(model, source.watched)
    return save_model(model, final)
