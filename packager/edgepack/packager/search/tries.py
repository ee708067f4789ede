"""The candidates of one search so far: made, measured or recalled, and the best of them."""

import shutil
from collections.abc import Collection
from pathlib import Path

import msgspec
from msgspec.structs import replace

from edgepack.packager.graph.model_files import save_model
from edgepack.packager.progress import Progress
from edgepack.packager.quantization.contract import Built, CandidateMaker, NodeCost, Raising
from edgepack.packager.quantization.savings import given_away
from edgepack.packager.runtime.evaluator import Evaluator
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.search.attempts import Attempt
from edgepack.packager.search.candidates import Candidate, Demand, Judged, SearchResult
from edgepack.packager.search.journal import Journal
from edgepack.packager.search.judge import NEAR_SPARE, CandidateJudge
from edgepack.packager.search.time_limit import TimeLimit, describe_duration

_KEPT_BYTES = 64_000_000
"""Candidates of small models stay on disk, where they can be timed in the end."""


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What a search may take and what it remembers.

    Attributes:
        limit: Ends the search in time.
        journal: Keeps what was measured.
        context: Digest of all that the measurements depend on.
        label: See `Candidate`.
        demand: When the search may end.
    """

    limit: TimeLimit
    journal: Journal
    context: str = ""
    label: str = ""
    demand: Demand = msgspec.field(default_factory=Demand)


class Tries:
    """Candidates so far; the best is the one to keep: within the budget, and saving the most.

    Args:
        maker: Makes candidates.
        evaluator: Opens candidates where they are measured.
        judge: Judges them.
        conditions: See `Conditions`.
        work_dir: Folder for the candidates.
        progress: Told about each candidate.
    """

    def __init__(
        self,
        maker: CandidateMaker,
        evaluator: Evaluator,
        judge: CandidateJudge,
        conditions: Conditions,
        *,
        work_dir: Path,
        progress: Progress,
    ) -> None:
        self._maker = maker
        self._evaluator = evaluator
        self._judge = judge
        self._conditions = conditions
        self._folder = work_dir
        self._progress = progress
        self._candidates: list[Candidate] = []
        self._reasons: list[str] = []
        self._ranked: tuple[NodeCost, ...] = ()

    def add(
        self,
        method: str,
        float_nodes: Collection[str],
        because: str,
        *,
        raised: Collection[str] = (),
    ) -> Candidate:
        """Makes, runs and judges one candidate, unless it was judged before.

        Args:
            method: How it is made.
            float_nodes: Nodes that stay float.
            because: Why it is tried.
            raised: Nodes that get more bits, see `Raising`.

        Raises:
            OutOfTimeError: The time is used up, be it in the middle of a candidate, and there is
                another already.
            BuildError: ONNX Runtime refuses it.
        """
        self._conditions.limit.check()
        for known in self._candidates:
            if known.key == (method, frozenset(float_nodes), frozenset(raised)):
                return known
        number = len(self._candidates) + 1
        wanted = (method, tuple(float_nodes), tuple(raised))
        candidate = self._recall(number, *wanted)
        if candidate is None:
            candidate = self._measure(number, *wanted)
        self._candidates.append(candidate)
        self._reasons.append(because)
        self._discard_large()
        self._conditions.limit.enforce()
        self._progress(self._describe(candidate), number, 0)
        return candidate

    @property
    def ranked(self) -> tuple[NodeCost, ...]:
        """What each node costs and saves, as it was measured last; empty before."""
        return self._ranked

    @property
    def raised_word(self) -> str:
        """What a raised node is; "" where none can be."""
        return self._maker.raising.word if self._maker.raising else ""

    def open(self, candidate: Candidate) -> Run:
        """A candidate, ready to run."""
        return self._evaluator.open(self._made(candidate).path)

    def rank(self, method: str, raising: Raising | None = None) -> tuple[NodeCost, ...]:
        """What each node costs, worst first; from the journal where it was measured before.

        Args:
            method: How candidates are made.
            raising: Given where all nodes are to be raised.
        """
        key = f"rank {method}" if raising is None else f"rank {method}, raised"
        known = self._conditions.journal.recall(self._conditions.context, key, tuple[NodeCost, ...])
        if known is None:
            rank = self._maker.rank if raising is None else raising.rank
            known = rank(method, self._judge.samples, self._progress)
            self._conditions.journal.keep(self._conditions.context, key, known)
        self._ranked = known
        return known

    def is_settled(self, candidate: Candidate) -> bool:
        """Whether a candidate meets the demand."""
        return self._conditions.demand.is_met(candidate.verdict)

    @property
    def best(self) -> Candidate:
        """Meets the demand and gives the least away; else the most accurate one."""
        settled = [candidate for candidate in self._candidates if self.is_settled(candidate)]
        if settled:
            return min(settled, key=self._given_away)
        best = self._candidates[0]
        for candidate in self._candidates[1:]:
            if candidate.verdict.beats(best.verdict):
                best = candidate
        return best

    def _given_away(self, candidate: Candidate) -> tuple[float, float]:
        """By nodes that are float, then by those with more bits."""
        return (
            given_away(self._ranked, candidate.float_nodes),
            given_away(self._ranked, candidate.only_raised),
        )

    @property
    def _least_spare(self) -> float:
        """Of a candidate that is not within the budget, and worse than the best, nothing counts."""
        return NEAR_SPARE if self.is_empty else max(NEAR_SPARE, min(0.0, self.best.verdict.spare))

    @property
    def is_empty(self) -> bool:
        """Whether nothing was judged yet."""
        return not self._candidates

    def result(self, notes: tuple[str, ...] = ()) -> SearchResult:
        """What to hand back; the best candidate is made where its numbers were recalled."""
        attempts = tuple(
            Attempt(
                what=candidate.words,
                accuracy=candidate.verdict.value,
                size_bytes=candidate.judged.size_bytes,
                because=_reason(because, candidate),
                float_nodes=len(candidate.float_nodes),
                raised_nodes=None if self._maker.raising is None else len(candidate.only_raised),
            )
            for candidate, because in zip(self._candidates, self._reasons, strict=True)
        )
        with self._conditions.limit.paused():
            best = self._made(self.best)
        return SearchResult(
            best=best,
            attempts=attempts,
            candidates=tuple(self._candidates),
            sensitive_nodes=self._ranked,
            notes=(*self._conditions.journal.notes, *notes),
        )

    def _recall(
        self, number: int, method: str, float_nodes: tuple[str, ...], raised: tuple[str, ...]
    ) -> Candidate | None:
        key = _key(method, float_nodes, raised)
        judged = self._conditions.journal.recall(self._conditions.context, key, Judged)
        if judged is None:
            return None
        return self._candidate(number, method, float_nodes, raised, judged)

    def _measure(
        self, number: int, method: str, float_nodes: tuple[str, ...], raised: tuple[str, ...]
    ) -> Candidate:
        path = self._path(number)
        built = self._build(method, float_nodes, raised)
        path.parent.mkdir(parents=True, exist_ok=True)
        size_bytes = save_model(built.model, path)
        verdict = self._judge.judge(
            self._evaluator.open(path),
            at_least=self._least_spare,
            before_each=self._conditions.limit.check,
        )
        judged = Judged(verdict=verdict, size_bytes=size_bytes, lowered=len(built.lowered))
        key = _key(method, float_nodes, raised)
        self._conditions.journal.keep(self._conditions.context, key, judged)
        return replace(
            self._candidate(number, method, float_nodes, raised, judged),
            origin=built.origin,
            notes=built.notes,
        )

    def _build(self, method: str, float_nodes: Collection[str], raised: Collection[str]) -> Built:
        if not raised:
            return self._maker.build(method, float_nodes)
        if self._maker.raising is None:
            raise ValueError("nodes to raise, for a maker that raises none")
        return self._maker.raising.build(method, float_nodes, raised)

    def _candidate(
        self,
        number: int,
        method: str,
        float_nodes: tuple[str, ...],
        raised: tuple[str, ...],
        judged: Judged,
    ) -> Candidate:
        return Candidate(
            label=self._conditions.label,
            verb=self._maker.verb,
            method=method,
            float_nodes=float_nodes,
            raised=raised,
            raised_word=self.raised_word,
            path=self._path(number),
            judged=judged,
            costs=self._ranked,
        )

    def _path(self, number: int) -> Path:
        return self._folder / f"candidate-{number}" / "model.onnx"

    def _made(self, candidate: Candidate) -> Candidate:
        """The candidate with its model on disk: making it again gives the same bytes."""
        if candidate.path.exists():
            return candidate
        built = self._build(candidate.method, candidate.float_nodes, candidate.raised)
        candidate.path.parent.mkdir(parents=True, exist_ok=True)
        save_model(built.model, candidate.path)
        return replace(candidate, origin=built.origin, notes=built.notes)

    def _discard_large(self) -> None:
        """Leaves the best, and the first others: a large model's candidates would fill the disk."""
        kept = self.best.path.parent
        spare_bytes = _KEPT_BYTES
        for candidate in self._candidates:
            folder = candidate.path.parent
            if folder == kept or not folder.exists():
                continue
            spare_bytes -= candidate.judged.size_bytes
            if spare_bytes < 0:
                shutil.rmtree(folder)

    def _describe(self, candidate: Candidate) -> str:
        verdict, best = candidate.verdict, self.best
        words = f"trying {candidate.words}: {verdict.metric} {verdict.value:.4f}"
        if best is not candidate:
            words += f" (best so far: {best.words}, {best.verdict.value:.4f})"
        left_s = self._conditions.limit.left_s
        return words if left_s is None else f"{words}, {describe_duration(round(left_s))} left"


def _reason(because: str, candidate: Candidate) -> str:
    after = candidate.verdict.given_up_after
    return because if after is None else f"{because}; given up after {after} samples"


def _key(method: str, float_nodes: Collection[str], raised: Collection[str]) -> str:
    """Which candidate it is; the order of the nodes changes nothing."""
    spared = [sorted(float_nodes), sorted(raised)] if raised else [sorted(float_nodes)]
    return msgspec.json.encode([method, *spared]).decode()
