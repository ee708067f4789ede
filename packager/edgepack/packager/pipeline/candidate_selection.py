"""Selection of the model for the gates: a quantized candidate, or the float model.

The search finds the best quantized candidate. If the profile allows, the float model is published
instead if it is faster on the provider itself, or if no candidate keeps the budget.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.number_format import format_bytes, format_metric, format_milliseconds
from edgepack.packager.gates import checks as gates
from edgepack.packager.gates.chains import STEPS
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.graph.model_files import save_model
from edgepack.packager.graph.source_quantization import read_source_quantization
from edgepack.packager.memory import return_freed_memory
from edgepack.packager.pipeline.prequantized import check_own_scales, describe_own
from edgepack.packager.pipeline.selection import (
    EvaluationInputs,
    PreparedFloat,
    Selection,
    describe_float_instead,
)
from edgepack.packager.profiles.pass_settings import Lowering, Quantize
from edgepack.packager.profiles.schema import Preference, Profile
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.quantization.candidate_makers import maker_for
from edgepack.packager.quantization.contract import CandidateMaker, CandidateSpec
from edgepack.packager.runtime.deadline import OutOfTimeError
from edgepack.packager.runtime.evaluator import Evaluator, Venue
from edgepack.packager.runtime.restored_weights import nodes_with_restored_weights
from edgepack.packager.search.candidate_measurer import CandidateMeasurer
from edgepack.packager.search.candidate_trials import CandidateTrials
from edgepack.packager.search.candidates import Candidate, SearchResult
from edgepack.packager.search.journal import SearchConditions
from edgepack.packager.search.judge import MOST_SAMPLES, CandidateJudge
from edgepack.packager.search.kept_float import KeptFloat
from edgepack.packager.search.race import Race
from edgepack.packager.search.search import search
from edgepack.packager.search.search_target import SearchTarget
from edgepack.packager.search.speedup import Outcome, Speedup
from edgepack.packager.source.watched_outputs import postprocessing_names
from edgepack.packager.tensors.sequence import Samples
from edgepack.packager.wording import some_of
from edgepack.text import counted

_MOST_NAMED = 5

_NOT_ENOUGH: Mapping[Preference, str] = {
    "speed": "not 5% faster",
    "size": "hardly smaller and no faster",
    "balanced": "no faster",
    "device": "slower",
}
_PREFERRED: Mapping[Preference, str] = {
    "speed": "speed",
    "size": "size",
    "balanced": "a balance of both",
    "device": "what is faster on each device",
}

_NOT_TIMED = "Not timed to the end beside the float model: the time of the build was used up."

_SCOPE_MISSED = "it misses the accuracy target, so the profile's own scope goes on"

_SCOPE_OUTCOMES: Mapping[Outcome, str] = {
    "faster": "it goes on",
    "not faster": f"not {gates.FASTER_FACTOR - 1:.0%} faster, so the profile's own scope goes on",
    "undecided": "undecided, so the profile's own scope goes on",
}

_TO_OR_WITH = {"quantized": "with", "converted": "to"}


class _Scope(NamedTuple):
    """A maker of candidates, and the lowered operators: "" for the profile's own scope."""

    maker: CandidateMaker
    name: str


@dataclass
class CandidateSelector:
    """Quantizes if the profile requests quantization, and decides between quantized and float
    model.

    The selector stores its measurements, so that another selection with a stricter target only adds
    measurements.

    Attributes:
        prepared: The float model.
        profile: The profile.
        venue: Place of a run on this host.
        inputs: Samples that candidates are made from and evaluated on.
        conditions: Limits and memory of the search.
        work_dir: Folder for everything that is written.
        progress: Called for each step.
    """

    prepared: PreparedFloat
    profile: Profile
    venue: Venue
    inputs: EvaluationInputs
    conditions: SearchConditions
    work_dir: Path
    progress: Progress

    def __post_init__(self) -> None:
        prepared = self.prepared
        profile = self.profile
        inputs = self.inputs
        self._evaluator = Evaluator(profile, self.venue)
        self._race = Race(
            prepared.published,
            profile,
            self._evaluator,
            inputs.split.search,
            self.conditions.limit,
        )
        self._own = read_source_quantization(prepared.model.graph)
        self._scopes: list[_Scope] = []
        self._is_raced = False
        self._beaten: SearchResult | None = None
        self._judge: CandidateJudge | None = None
        self._searches = 0
        self._scope_note = ""
        self._latencies_ms: dict[tuple[str, float], float] = {}
        if self._own is not None:
            check_own_scales(self._own, profile)
            return
        if profile.lowering is None:
            return
        tail = postprocessing_names(
            prepared.model.graph, inputs.split.search.description, inputs.source.watched
        )
        for name, settings in _scopes(profile):
            maker: CandidateMaker = maker_for(settings)(
                prepared.model,
                settings,
                inputs.split.calibration,
                self.work_dir / "calibration" / name,
                self.conditions.limit.watch(self.progress),
            )
            self._scopes.append(_Scope(KeptFloat(maker, tail) if tail else maker, name))
        if not self._race.can_run or profile.gates.prefer == "size":
            del self._scopes[1:]
        if self._scopes[0].maker.names:
            few = _few(inputs.split.search, inputs.split.calibration)
            self._judge = CandidateJudge(
                inputs.float_source, few, profile.gates.accuracy, inputs.metric
            )

    @property
    def is_out_of_time(self) -> bool:
        """True if the time that was given for the search is used up."""
        return self.conditions.limit.left_s == 0.0

    def select(self, target: SearchTarget) -> Selection:
        """Search, and decide.

        Args:
            target: When the search may end.

        Raises:
            BuildError: See `search`.
            OutOfTimeError: The time was used up before the first candidate.
        """
        prepared = self.prepared
        profile = self.profile
        settings = self.profile.lowering
        if self._own is not None:
            notes = describe_own(self._own, profile)
            return Selection(path=prepared.published, precision=self._own.precision, notes=notes)
        if settings is None:
            return Selection(path=prepared.published, precision=profile.about.precision)
        if self._judge is None:
            return _nothing_to_lower(prepared, profile, settings)
        found = self._search(self._scopes[0], target, self._race.is_hopeless)
        if len(self._scopes) == 1:
            return self._decide(found)
        if target.is_met(found.best.verdict) != self._is_raced:
            found = self._search_other_scope(found, target)
        return self._decide(found)

    def _search(
        self, scope: "_Scope", target: SearchTarget, is_hopeless: Callable[[Path], bool]
    ) -> SearchResult:
        if self._judge is None or self.profile.lowering is None:
            raise ValueError("nothing is lowered")
        self._searches += 1
        conditions = replace(
            self.conditions,
            target=target,
            label=", ".join(filter(None, (self.conditions.label, scope.name))),
            context=self.conditions.context + scope.name,
        )
        folder = self.work_dir / f"search-{self._searches}"
        measurer = CandidateMeasurer(scope.maker, self._evaluator, self._judge, conditions, folder)
        return search(measurer, self.profile.lowering.max_float_share, self.progress, is_hopeless)

    def _search_other_scope(self, own: SearchResult, target: SearchTarget) -> SearchResult:
        """Search the scope that has not continued so far, and return the continuing result.

        The first time the best candidates of both are raced, and the faster candidate continues:
        the profile's own candidate if the race is undecided. After that, the other scope is used if
        the faster scope misses a stricter target.
        """
        race, scope = dataclasses.replace(self._race, prepared=own.best.path), self._scopes[1]
        raced: Speedup | None = None

        def is_slower(path: Path) -> bool:
            nonlocal raced
            raced = race.run(path, gates.FASTER_FACTOR)
            return raced is None or raced.outcome != "faster"

        try:
            hook = self._race.is_hopeless if self._is_raced else is_slower
            other = self._search(scope, target, hook)
            is_met = target.is_met(other.best.verdict)
            if is_met and not self._is_raced:
                self.progress(BuildStep(what=f"timing {scope.name} quantized"))
                raced = race.run(other.best.path, gates.FASTER_FACTOR)
        except OutOfTimeError:
            self._scope_note = f"No time was left for candidates with {scope.name} quantized."
            return own
        except BuildError as error:
            del self._scopes[1:]
            self._scope_note = f"With {scope.name} quantized: {error.problem}."
            return own
        if self._is_raced:
            if is_met:
                self._scopes.reverse()
            return _with_attempts(other if is_met else own, own, other)
        self._is_raced = True
        if raced is not None:
            nodes = counted(own.best.measured.lowered, "node")
            self._scope_note = (
                f"With {scope.name} quantized the model is {raced.describe(f'with {nodes}')}: "
                f"{_SCOPE_OUTCOMES[raced.outcome] if is_met else _SCOPE_MISSED}."
            )
        if not is_met or raced is None or raced.outcome != "faster":
            del self._scopes[1:]
            return _with_attempts(own, own, other)
        self._scopes.reverse()
        self._beaten = _with_attempts(own, own, other)
        return _with_attempts(other, own, other)

    def select_beaten(self) -> Selection | None:
        """Return the profile's own candidate, which lost the race of the scopes; None without one,
        or if the float model is preferred to it.

        The candidate is returned once. Later selections search the profile's own scope first.

        Raises:
            OutOfTimeError: The time is used up.
        """
        beaten, self._beaten = self._beaten, None
        if beaten is None:
            return None
        selection = self._decide(beaten)
        if not selection.is_lowered:
            return None
        self._scopes.reverse()
        return selection

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes that can be lowered, in graph order."""
        return self._scopes[0].maker.names if self._scopes else ()

    def make_again(self, candidate: Candidate, float_nodes: Collection[str]) -> Path:
        """Return a candidate with more float nodes, as a file that the next call overwrites.

        Args:
            candidate: A found candidate.
            float_nodes: Names of nodes.
        """
        if not self._scopes:
            raise ValueError("nothing is lowered")
        together = tuple(dict.fromkeys((*candidate.float_nodes, *float_nodes)))
        built = self._scopes[0].maker.build(replace(candidate.spec, float_nodes=together))
        path = self.work_dir / "again" / "model.onnx"
        path.parent.mkdir(exist_ok=True)
        save_model(built.model, path)
        return path

    def exclude_nodes(self, nodes: Collection[str]) -> None:
        """Keep nodes float in all that is chosen from now on."""
        if not self._scopes:
            raise ValueError("nothing is lowered")
        self._scopes = [_Scope(KeptFloat(it.maker, nodes), it.name) for it in self._scopes]
        self._beaten = None
        context = f"{self.conditions.context}, float: {', '.join(sorted(nodes))}"
        self.conditions = replace(self.conditions, context=context)

    def try_first(self) -> Verdict | None:
        """Return the verdict on the first method with every node lowered; None where nothing is
        lowered.

        Raises:
            BuildError: The candidate cannot be made or run.
            OutOfTimeError: The time is used up.
        """
        if self._judge is None:
            return None
        folder, maker = self.work_dir / "first", self._scopes[0].maker
        measurer = CandidateMeasurer(maker, self._evaluator, self._judge, self.conditions, folder)
        first = CandidateSpec(method=maker.methods[0])
        return CandidateTrials(measurer, self.progress).add(first, "whether it may do").verdict

    def _decide(self, found: SearchResult) -> Selection:
        """Decide between the best candidate and the float model."""
        prepared = self.prepared
        profile = self.profile
        best = found.best
        self.progress(BuildStep(what="timing it beside the float model"))
        return_freed_memory()  # the float model's session packs all weights
        size_share = best.measured.size_bytes / prepared.size_bytes
        asked = None
        if "slower" in profile.gates.float_instead:
            asked = gates.least_speedup(size_share, profile.gates.prefer)
        raced, timed_notes = None, [self._scope_note] if self._scope_note else []
        try:
            raced = self._race.run(best.path, asked)
            if raced is not None:
                self._latencies_ms[best.words, best.verdict.value] = raced.latency_ms
                self._latencies_ms |= self._race.run_others(found, raced.latency_ms)
                timed_notes += _describe_race(raced, asked, profile)
        except OutOfTimeError:
            timed_notes.append(_NOT_TIMED)
            if asked is not None and profile.gates.undecided == "float" and best.verdict.passed:
                because = "it was not timed to the end, and gates.undecided is 'float'"
                float_model = _float_instead(prepared, found, because)
                return replace(float_model, timed_notes=tuple(timed_notes))
        is_undecided = raced is not None and raced.outcome == "undecided"
        is_not_worth_it = raced is not None and (
            raced.outcome == "not faster" or (is_undecided and profile.gates.undecided == "float")
        )
        if raced is not None and is_not_worth_it:
            host = f"on {self._evaluator.raced_on}"
            because = (
                f"{host} it is undecided whether the quantized one is fast enough, and "
                f"gates.undecided is 'float', at {size_share:.0%} of its bytes"
                if is_undecided
                else f"{host} the quantized one is {_NOT_ENOUGH[profile.gates.prefer]}, at "
                f"{size_share:.0%} of its bytes"
            )
            if not best.verdict.passed:
                because = f"{_describe_miss(found, profile)}; and {because}"
            timed = (
                f"The quantized model takes {format_milliseconds(raced.latency_ms)} and "
                f"{format_bytes(best.measured.size_bytes)}, the float one "
                f"{format_milliseconds(raced.float_latency_ms)} and "
                f"{format_bytes(prepared.size_bytes)} "
                f"(1 thread); preferred is {_PREFERRED[profile.gates.prefer]} (--prefer)."
            )
            float_model = _float_instead(prepared, found, because, raced.float_latency_ms)
            return replace(
                float_model,
                latencies_ms=self._latencies_ms,
                timed_notes=(timed, *timed_notes),
                speedup=raced,
            )
        if not best.verdict.passed and "inaccurate" in profile.gates.float_instead:
            float_ms = raced.float_latency_ms if raced else None
            missed = _float_instead(prepared, found, _describe_miss(found, profile), float_ms)
            return replace(missed, speedup=raced)
        if raced is not None and raced.outcome != "undecided" and raced.ratio < 1.0:
            timed_notes.append(
                f"It is not faster than the float model on {self._evaluator.raced_on} "
                f"({format_milliseconds(raced.latency_ms)} against "
                f"{format_milliseconds(raced.float_latency_ms)}, 1 thread), but smaller."
            )
        return Selection(
            path=best.path,
            precision=profile.about.precision,
            found=found,
            notes=(
                f"{best.verb.capitalize()} {_TO_OR_WITH[best.verb]} {best.words}.",
                *best.notes,
                *found.notes,
                *self._describe_restored(best.path),
            ),
            timed_notes=tuple(timed_notes),
            latency_ms=raced.latency_ms if raced else None,
            float_latency_ms=raced.float_latency_ms if raced else None,
            speedup=raced,
            latencies_ms=self._latencies_ms,
        )

    def _describe_restored(self, path: Path) -> tuple[str, ...]:
        if not self._evaluator.is_on_cpu:
            return ()
        names = nodes_with_restored_weights(path)
        if not names:
            return ()
        return (
            "Quantized, and multiplied as floats all the same, since ONNX Runtime has no integer "
            f"form of them as they stand: {counted(len(names), 'node')}: "
            f"{some_of(names, _MOST_NAMED)}.",
        )


def _scopes(profile: Profile) -> Iterator[tuple[str, Lowering]]:
    """Yield the scopes of a profile's lowering: "" for the profile's own scope, and another scope
    for a race.
    """
    settings = profile.lowering
    if settings is not None:
        yield "", settings
    if isinstance(settings, Quantize) and settings.raced_ops not in ("", settings.ops):
        yield "every operator", replace(settings, ops=settings.raced_ops, raced_ops="")


def _with_attempts(found: SearchResult, *searched: SearchResult) -> SearchResult:
    """Return a search's result with the attempts of the searches of both scopes, in order."""
    return replace(
        found,
        attempts=tuple(attempt for result in searched for attempt in result.attempts),
        candidates=tuple(each for result in searched for each in result.candidates),
        notes=tuple(dict.fromkeys(note for result in searched for note in result.notes)),
    )


def _float_instead(
    prepared: PreparedFloat,
    found: SearchResult | None,
    because: str,
    latency_ms: float | None = None,
) -> Selection:
    """Return the float model, which is published for a reason although something could be
    lowered.
    """
    return Selection(
        path=prepared.published,
        precision=prepared.precision,
        found=found,
        notes=(describe_float_instead(because), *(found.notes if found else ())),
        latency_ms=latency_ms,
        float_latency_ms=latency_ms,
        float_because=because,
    )


def _describe_race(raced: Speedup, asked: float | None, profile: Profile) -> Iterator[str]:
    """Yield a note that the races were undecided, with the rule that decided."""
    if raced.outcome != "undecided" or asked is None:
        return
    published = {"quantized": "the quantized model", "float": "the float model"}
    yield (
        f"Undecided: the quantized model is {raced.describe()}, and {asked:.2f} is asked for. By "
        f"gates.undecided = '{profile.gates.undecided}', {published[profile.gates.undecided]} is "
        "published. Build on an idle machine to decide."
    )


def _describe_miss(found: SearchResult, profile: Profile) -> str:
    """Return the reason: no candidate is within the budget, and how near the best came."""
    best, count = found.best, len(found.attempts)
    budget = format_metric(best.verdict.budget)
    came_to = f"{best.words}: {best.verdict.found}"
    if found.is_hopeless:
        factor = gates.HOPELESSLY_SLOW_FACTORS.get(profile.gates.prefer, 1.0)
        return (
            f"the first candidate misses the budget of {budget} ({came_to}), and no other was "
            f"searched: it is over {factor - 1:.0%} slower than the float model"
        )
    if count == 1:
        return f"the one candidate does not keep the budget of {budget} ({came_to})"
    return f"none of {count} candidates keeps the budget of {budget} (the best, {came_to})"


def _nothing_to_lower(prepared: PreparedFloat, profile: Profile, settings: Lowering) -> Selection:
    tag = str(type(settings).__struct_config__.tag)
    if not profile.gates.float_instead:
        raise BuildError(
            f"profile '{profile.name}' lowers the precision, and the model has no node that it "
            f"could: {tag} takes {settings.takes}",
            found_in=f"pass {tag}",
            remedy="--profile fp32, or one that lowers other operators (edgepack profiles list)",
        )
    return _float_instead(prepared, None, "it has no node whose precision could be lowered")


def _few(first: Samples, then: Samples) -> Samples:
    """Return up to `MOST_SAMPLES` samples: all of the first set, then some of the second."""
    most = MOST_SAMPLES * STEPS if first.steps else MOST_SAMPLES  # series run once
    head = first.first(most)
    tail = then.first(most - head.count).count if head.count < most else 0
    return head.extend([(then, index) for index in range(tail)])
