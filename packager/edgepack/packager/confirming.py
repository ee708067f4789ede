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

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.packager.exploring import Explored
from edgepack.packager.graph.model_files import load_model, save_model
from edgepack.packager.judging.distance import OutputDistance
from edgepack.packager.judging.inspection import Inspection
from edgepack.packager.judging.labels import LabelledSamples, judge_by_labels
from edgepack.packager.judging.measure import Run
from edgepack.packager.judging.user_metric import Metric
from edgepack.packager.judging.verdict import Verdict
from edgepack.packager.on_provider import OnProvider, RanThere, RefusedThereError
from edgepack.packager.progress import Progress
from edgepack.packager.refused_whole import leave_refused
from edgepack.packager.reports.numbers import format_metric
from edgepack.packager.samples.sequence import Samples
from edgepack.packager.saving import saves_nothing
from edgepack.packager.search.candidates import Demand
from edgepack.packager.search.judge import CandidateJudge
from edgepack.packager.search.larger_demand import MOST_TIMES, Larger, larger_demand
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.watched_tail import without_watched

_TURNS_TO_BE_SURE = 2
"""The last turn is for what is refused: what passes, surely or not, is taken."""

_MOST_TIMES_REFUSED = 3
"""How often nodes are left float for a provider that refuses the whole graph."""

Look = Callable[[Explored], Inspection | None]
"""Looks inside what was found; None where nothing was lowered."""


_EASED = "None does: half of what the most accurate candidate gains is taken for enough."


class HeldOut(msgspec.Struct, frozen=True, kw_only=True):
    """What the verdict is given by.

    Attributes:
        float_source: Runs the source model.
        samples: Samples that nothing was chosen by.
        metric: The user's own metric, or None.
        labelled: Held-out samples with labels, which then give the verdict; or None.
    """

    float_source: Run
    samples: Samples
    metric: Metric | None
    labelled: LabelledSamples | None


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """A model with its verdict, within the budget or not.

    Attributes:
        explored: What was prepared; its search cannot go on any more.
        size_bytes: Size of the model that was written.
        verdict: The verdict.
        count: How many held-out samples gave it.
        distances: By output, on the held-out samples.
        ran: What came of its run on the provider; None where that cannot run here.
        inspection: What a look inside showed; None where nothing was lowered.
        notes: How often the search went on, and why.
    """

    explored: Explored
    size_bytes: int
    verdict: Verdict
    count: int
    distances: Sequence[OutputDistance]
    ran: RanThere | None = None
    inspection: Inspection | None = None
    notes: tuple[str, ...] = ()


def confirm(
    explored: Explored,
    source: SourceModel,
    final: Path,
    held_out: HeldOut,
    on_provider: OnProvider,
    look: Look,
    progress: Progress,
) -> Confirmed:
    """Writes the variant's model and judges it; see above for what a refusal leads to.

    Args:
        explored: What was prepared.
        source: The source model, whose metadata the variant keeps.
        final: Where the variant's model is written, without the outputs that are only watched.
        held_out: What gives the verdict.
        on_provider: Runs what the held-out samples are sure of, and what is left in the end.
        look: Looks inside what is run there, first.
        progress: Told about each step.

    Raises:
        BuildError: A candidate cannot be made or run.
    """
    measured = _measured(source, final)
    notes: list[str] = []

    def judge_only() -> Confirmed:
        on_provider.load_ahead(explored.profile, explored.evaluator.venue)
        size_bytes = _finish(explored.chosen.path, source, final, measured)
        return _judge(explored, size_bytes, measured, held_out, progress)

    def run(judged: Confirmed) -> Confirmed:
        nonlocal explored
        for _ in range(_MOST_TIMES_REFUSED):
            try:
                return _run(judged, measured, on_provider, look)
            except RefusedThereError as error:
                left = leave_refused(explored, error, on_provider, progress)
            explored = left.explored
            notes.append(left.note)
            judged = judge_only()
        return _run(judged, measured, on_provider, look)

    def judge() -> Confirmed:
        judged = judge_only()
        return run(judged) if _is_sure(judged.verdict) else judged

    confirmed = judge()
    larger: Larger | None = None
    for turn in range(MOST_TIMES):
        found = explored.chosen.found
        if found is None or not explored.chosen.may_go_on:
            break
        if turn >= _TURNS_TO_BE_SURE and confirmed.verdict.passed:
            break
        objection = _objection(confirmed, found.best.words)
        if not objection:
            break
        missed = None if confirmed.verdict.passed else confirmed.verdict
        larger = larger_demand(turn, found.best.verdict, missed, larger)
        demand = larger.demand
        notes.append(
            f"{objection}: the search went on for a candidate that leaves {demand.reserve:.0%} "
            f"of the budget and makes {larger.share:.0%} of its error"
            f"{', in proportion to the miss' if larger.is_in_proportion else ''}."
        )
        further = explored.go_on(demand)
        if further is None:
            notes.append(_describe_standstill(explored))
            break
        if turn < _TURNS_TO_BE_SURE:
            eased = _eased(explored, further, demand)
            notes += [_EASED] if eased is not None else []
            further = eased or further
        if confirmed.verdict.passed and not _refuses(confirmed.ran) and saves_nothing(further):
            notes.append(_describe_surer(further))
            explored = explored.with_attempts_of(further)
            break
        explored = further
        confirmed = judge()
    may_be_float = "inaccurate" in explored.profile.gates.float_instead
    is_refused = not confirmed.verdict.passed or _refuses(confirmed.ran)
    if may_be_float and explored.chosen.is_lowered and is_refused:
        who = "its provider refuses" if _refuses(confirmed.ran) else "the held-out samples refuse"
        notes.append(f"The float model is published: {who} every quantized one.")
        explored = explored.with_float_model()
        confirmed = judge()
    if confirmed.ran is None:
        confirmed = run(confirmed)
    if confirmed.inspection is None:
        confirmed = replace(confirmed, inspection=look(explored))
    finished = replace(explored, chooser=None)
    return replace(confirmed, explored=finished, notes=tuple(notes))


def _eased(refused: Explored, further: Explored, demand: Demand) -> Explored | None:
    """Between a refused candidate and the most accurate one, where nothing meets the demand."""
    before, after = refused.chosen.found, further.chosen.found
    if before is None or after is None:
        return None
    best = after.best.verdict
    if demand.is_met(best) or not best.passed:
        return None
    return further.go_on(demand.eased(before.best.verdict, best))


def _describe_surer(further: Explored) -> str:
    found = further.chosen.found
    words = found.best.words if found else ""
    return (
        f"What may be surer saves nothing ({words}): the candidate before is kept, which the "
        "held-out samples pass. More of them would tell how sure it is."
    )


def _is_sure(verdict: Verdict) -> bool:
    return verdict.passed and not verdict.forgiven


def _refuses(ran: RanThere | None) -> bool:
    return ran is not None and ran.refusal is not None


def _describe_standstill(explored: Explored) -> str:
    """Why a search that went on has nothing new."""
    if explored.chooser is not None and explored.chooser.is_out_of_time:
        return "Its time was used up before it found a candidate nearer to the float model."
    return "It found no candidate nearer to the float model."


def _objection(confirmed: Confirmed, words: str) -> str:
    """Why a candidate, in these words, is not taken as it is; "" where it is."""
    verdict = confirmed.verdict
    if not _is_sure(verdict):
        return (
            f"The held-out samples {'are not sure of' if verdict.passed else 'refuse'} {words} "
            f"({verdict.metric} {format_metric(verdict.value)}, the budget is "
            f"{format_metric(verdict.budget)})"
        )
    ran = confirmed.ran
    if ran is None or ran.refusal is None:
        return ""
    return f"On its provider {words} is off ({ran.refusal.problem})"


def _run(confirmed: Confirmed, model: Path, on_provider: OnProvider, look: Look) -> Confirmed:
    explored = confirmed.explored
    if not explored.evaluator.venue.can_run:
        return confirmed
    confirmed = replace(confirmed, inspection=look(explored))
    ran = on_provider.run(model, explored.profile, explored.evaluator, confirmed.distances)
    return replace(confirmed, ran=ran)


def _judge(
    explored: Explored, size_bytes: int, model: Path, held_out: HeldOut, progress: Progress
) -> Confirmed:
    samples, float_source, gate = held_out.samples, held_out.float_source, explored.profile.gates
    judge = CandidateJudge(float_source, samples, gate.accuracy, held_out.metric)
    progress(f"{explored.profile.name}: held-out samples", 0, samples.count)
    run = explored.evaluator.open(model)
    got = [run(feeds) for feeds in samples]
    count = samples.count
    if held_out.labelled is not None:
        count = len(held_out.labelled.labels)
        verdict = judge_by_labels(held_out.labelled, run, float_source, gate.accuracy)
    elif held_out.metric is not None or samples.states:
        verdict = judge.judge(run)
    else:
        verdict = judge.judge_single(got)
    return Confirmed(
        explored=explored,
        size_bytes=size_bytes,
        verdict=verdict,
        count=count,
        distances=judge.reference.distances(got),
    )


def _measured(source: SourceModel, final: Path) -> Path:
    """Where the model lies that is measured: with what is watched, if anything is."""
    return final.parent.with_name("measured") / final.name if source.watched else final


def _finish(path: Path, source: SourceModel, final: Path, measured: Path) -> int:
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
